"""Writing a whole dataset from states that are at hand already: imports from other formats, and tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.fp8 import quantise
from eagle3.data.layout import StateShape
from eagle3.data.manifest import Manifest
from eagle3.data.placement import Placement, Prompts, place
from eagle3.data.skeleton import PARTIAL, create_skeleton, finalise, row_checksums
from eagle3.errors import DataError

StatesOf = Callable[[int], dict[str, Tensor]]
"""Placed sequence i -> its states, each [S, H]: bfloat16 where they are to be stored in 8 bits."""


def blank_manifest(shape: StateShape, placement: Placement, target: dict[str, str]) -> Manifest:
    """A manifest of a dataset that has no shard yet; the caller fills in what else it knows."""
    boundaries = [int(name.removeprefix("boundary.")) for name in shape.states if name.startswith("boundary.")]
    return Manifest(
        states=list(shape.states),
        boundaries=boundaries,
        dtype=shape.dtype,
        hidden_size=shape.hidden_size,
        vocab_size=0,
        num_layers=0,
        target=target,
        prompts_fingerprint=placement.prompts.fingerprint(),
        placement=placement.summary(),
        skipped=dict(placement.skipped),
    )


def write_dataset(
    folder: Path, prompts: Prompts, shape: StateShape, states_of: StatesOf, shard_gib: float = 2.0, vocab_size: int = 0
) -> Manifest:
    """A complete dataset folder of the given states, sequence by sequence; gives its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    placement = place(prompts, shape, shard_gib, context_length=int(prompts.lengths.max(initial=0)))
    manifest = blank_manifest(shape, placement, {"name": "given", "source": "local", "fingerprint": ""})
    manifest.vocab_size = vocab_size
    for plan in placement.shards:
        partial = folder / (plan.file + PARTIAL)
        create_skeleton(partial, plan.layout, placement.index(plan))
        sums = []
        with partial.open("r+b", buffering=0) as file:
            for i in plan.sequences:
                row, length = int(placement.row[i]), int(placement.length[i])
                states = states_of(i)
                for name in shape.states:
                    _check(states[name], shape, length, f"Sequence {i}, {name}")
                    rows = states[name]
                    if shape.scaled:
                        rows, scales = quantise(rows)
                        file.seek(plan.layout.scales(name, row, length)[0])
                        file.write(scales.numpy().data)
                    file.seek(plan.layout.rows(name, row, length)[0])
                    file.write(rows.contiguous().view(torch.uint8).numpy().data)
                sums.append(row_checksums(file.fileno(), plan.layout, row, length))
        manifest.add(finalise(partial, plan.layout, np.array(sums, np.int64)))
    manifest.complete = True
    manifest.save(folder)
    return manifest


def _check(tensor: Tensor, shape: StateShape, length: int, what: str) -> None:
    wanted = (getattr(torch, shape.as_read.dtype), (length, shape.hidden_size))
    if (tensor.dtype, tuple(tensor.shape)) != wanted:
        raise DataError(
            f"{what}: got {tensor.dtype} {tuple(tensor.shape)} where {wanted[0]} {wanted[1]} was announced."
        )
