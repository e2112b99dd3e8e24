"""Batches on their way to a GPU, beside what it computes meanwhile."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eagle3.data.loader import TrainBatch
from eagle3.drafter.batch import Batch


def upload(batch: TrainBatch | Batch, device: torch.device) -> TrainBatch | Batch:
    """The batch on a device. On a GPU, pinned memory is copied by a stream of its own: in the computing one, the copy
    would begin only when everything launched before is done, and the GPU would compute nothing meanwhile.
    """
    if device.type != "cuda":
        return batch.to(device, non_blocking=True)
    copying, computing = _stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copying):
        moved = batch.to(device, non_blocking=True)
    computing.wait_stream(copying)
    for tensor in _tensors(moved):
        tensor.record_stream(computing)  # so that its memory is not filled anew before it was read
    return moved


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from _tensors(getattr(value, item.name))
