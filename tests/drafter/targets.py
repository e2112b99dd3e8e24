"""A target's folder: config.json and two tensors, enough for what a drafter reads of it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3.target.info import TargetInfo, read_info


def make_target(
    folder: Path,
    architecture: str = "LlamaForCausalLM",
    hidden_size: int = 64,
    vocab_size: int = 128,
    num_layers: int = 8,
) -> TargetInfo:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": 96,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    tensors = {name: torch.randn(vocab_size, hidden_size, generator=generator).bfloat16() for name in names}
    save_file(tensors, folder / "model.safetensors")
    return read_info(folder)
