"""Small datasets of random states, for the tests of everything that reads them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.layout import StateShape, state_names
from eagle3.data.manifest import Manifest
from eagle3.data.placement import Prompts
from eagle3.data.writer import write_dataset

SHAPE = StateShape(tuple(state_names([1, 3])), hidden_size=8)


def prompts_of(lengths: list[int], first_id: int = 100, step: int = 3) -> Prompts:
    T = sum(lengths)
    return Prompts(
        input_ids=np.arange(T, dtype=np.int32) % 97,
        loss_mask=(np.arange(T) % 3 == 0).astype(np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        sample_ids=np.arange(len(lengths), dtype=np.int64) * step + first_id,
    )


def states_of(length: int, seed: int, shape: StateShape = SHAPE) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, shape.as_read.dtype)
    return {name: torch.randn(length, shape.hidden_size, generator=generator).to(dtype) for name in shape.states}


def write(folder: Path, lengths: list[int], shard_gib: float = 2.0, shape: StateShape = SHAPE) -> Manifest:
    return write_dataset(folder, prompts_of(lengths), shape, lambda i: states_of(lengths[i], i, shape), shard_gib)
