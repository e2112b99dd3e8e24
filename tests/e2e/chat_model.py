"""A complete tiny chat model in a folder: random weights, a tokenizer trained on the spot; and conversations."""

import json
from pathlib import Path

from tests.e2e.models import VOCAB, build, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Byte-level BPE of exactly VOCAB tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = [f"{a}{b}{c} " for a in "bcdfglmnprst" for b in "aeiou" for c in ("n", "r", "st", "ll")]
    tokenizer.train_from_iterator([" ".join(words)] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_chat_model(folder: Path) -> None:
    """config.json, model.safetensors and the tokenizer's files."""
    build(tiny_llama(), folder)
    write_tokenizer(folder)


def write_conversations(path: Path, count: int = 40) -> None:
    """One or two turns of repetitive text, so that a drafter can learn something in a few steps."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            word = ["barn", "dust", "fill", "gost", "lan"][i % 5]
            turns = [
                {"role": "user", "content": f"say {word} {1 + i % 7} times"},
                {"role": "assistant", "content": " ".join([word] * (8 + i % 23))},
            ]
            if i % 4 == 0:
                turns += [
                    {"role": "user", "content": "again"},
                    {"role": "assistant", "content": f"{word} {word} {word}"},
                ]
            file.write(json.dumps({"messages": turns}) + "\n")
