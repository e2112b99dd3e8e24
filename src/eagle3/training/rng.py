"""The states of the random number generators, as what a checkpoint may hold."""

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Of Python, NumPy and torch, in plain containers and tensors."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    assert isinstance(keys, np.ndarray)
    return {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore(state: dict[str, Any]) -> None:
    """Of `capture`; a different number of GPUs keeps their own."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
