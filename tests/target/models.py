"""Small model folders written without torch: config.json and safetensors of given shapes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "tie_word_embeddings": False,
}


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float16)


def write_model(folder: Path, config: dict[str, Any], shards: dict[str, dict[str, np.ndarray]]) -> Path:
    """One safetensors file, or several with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if len(shards) > 1:
        names = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def write_llama(folder: Path, **config: Any) -> Path:
    tensors = {"model.embed_tokens.weight": matrix(32, 8), "model.norm.weight": np.ones(8, np.float16)}
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = matrix(32, 8, seed=1)
    return write_model(folder, {**LLAMA, **config}, {"model.safetensors": tensors})
