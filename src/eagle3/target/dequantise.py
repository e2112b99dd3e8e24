"""From a GGUF file to a folder that transformers and SGLang load: `python -m eagle3.target.dequantise FILE FOLDER`.

A process of its own: transformers, torch and their progress bars have no business in the process that watches a run.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

# What llama.cpp calls a byte-level BPE's way of splitting before merging: are digits separated from each other?
# transformers' conversion takes every such tokenizer for GPT-2's, and then 1234 becomes other tokens than in training.
SPLITS_DIGITS = {"smollm": True, "starcoder": True, "refact": True, "command-r": True, "gpt-2": False, "olmo": False}


def convert(gguf: Path, folder: Path) -> None:
    """Writes the model in bf16, the tokenizer and the chat template."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_as_trained(tokenizer, gguf)
    # Newer transformers keep a GGUF's blocks packed unless told otherwise; older ones know no such option.
    packed = getattr(transformers, "GgufConfig", None)
    options = {"quantization_config": packed(dequantize=True)} if packed else {}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **options)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _split_as_trained(tokenizer: Any, gguf: Path) -> None:
    fields = {key.removeprefix("tokenizer.ggml."): field for key, field in GGUFReader(gguf).fields.items()}
    named = {key: fields[key].contents() for key in ("model", "pre") if key in fields}
    if named.get("model") != "gpt2":
        return
    if named.get("pre") not in SPLITS_DIGITS:
        raise SystemExit(f"its kind of tokenizer, {named.get('pre')!r}, is not known; use the model's own folder")
    if SPLITS_DIGITS[named["pre"]]:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
