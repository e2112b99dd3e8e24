"""What is asked of a format, and what all of them have in common."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.exchange.norm import FinalState
from eagle3.errors import DataError

Tokens = tuple[np.ndarray, np.ndarray]
"""input_ids `[S]` int32 and loss_mask `[S]` uint8 of a sequence."""


@dataclass(frozen=True)
class Stored:
    """One file: a sequence of S tokens. Tensors that were read are views on the file where the format allows it."""

    input_ids: Tensor
    """[S] int64."""
    loss_mask: Tensor
    """[S] int64; empty where the format keeps it elsewhere."""
    columns: list[Tensor]
    """The states, each `[S, H]`; the target's last state is the last of them."""


@dataclass(frozen=True)
class Source:
    """A folder in a foreign format, file by file."""

    folder: Path
    files: list[Path]
    sample_ids: list[int]
    """Of each file."""
    tokens: Callable[[int], Tokens]
    """Of file i, without touching its states."""
    missing: int = 0
    """Sequences that are known to the folder and have no file."""
    tables: list[Path] = field(default_factory=list)
    """Files that hold something of all sequences."""


@dataclass(frozen=True)
class Format:
    """A format of another project."""

    name: str
    final: FinalState
    """What it keeps as the last state."""
    exports: tuple[FinalState, ...]
    """What an export may write there: what some version of its trainer takes it for."""
    open: Callable[[Path], Source]
    """Raises DataError where the folder is not of the format."""
    file: Callable[[int], str]
    """Sequence i's file in an export's folder."""
    load: Callable[[Path], Stored]
    """Raises DataError for a file that is truncated or is none of the format's."""
    save: Callable[[Path, Stored], None]
    require_intact: Callable[[Path], None] | None = None
    """Raises DataError for a file whose bytes are not those that were written; None where a file can't tell."""
    finish: Callable[[Path, Iterator[Tokens], int], None] | None = None
    """What an export's folder holds beside the files: (folder, all tokens, number of sequences)."""
    finished: Callable[[Path], set[str]] | None = None
    """The names of that, in a folder where it is whole."""


def as_tokens(input_ids: Tensor, loss_mask: Tensor) -> Tokens:
    return input_ids.numpy().astype(np.int32), (loss_mask != 0).numpy().astype(np.uint8)


def in_natural_order(files: list[Path]) -> list[Path]:
    """`data_10` after `data_9`."""
    return sorted(files, key=lambda f: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", str(f))])


def require_shapes(path: Path, stored: Stored) -> Stored:
    """The same; raises DataError when ids, mask and states are not of one sequence, or the mask is none."""
    S = stored.input_ids.shape[0] if stored.input_ids.dim() == 1 else -1
    shapes = {"input_ids": stored.input_ids.shape, "loss_mask": stored.loss_mask.shape}
    shapes |= {f"state {k}": column.shape for k, column in enumerate(stored.columns)}
    H = stored.columns[-1].shape[-1] if stored.columns and stored.columns[-1].dim() else -1
    right = {"input_ids": {(S,)}, "loss_mask": {(S,), (0,)}}
    wrong = [name for name, shape in shapes.items() if tuple(shape) not in right.get(name, {(S, H)})]
    if S < 0 or len(stored.columns) < 2 or wrong:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise DataError(f"{path}: not a sequence with at least two states: {listed}. {REMEDY}")
    if not all(column.dtype in (torch.bfloat16, torch.float16, torch.float32) for column in stored.columns):
        raise DataError(f"{path}: its states are {stored.columns[-1].dtype}, not 16 or 32 bit floats. {REMEDY}")
    if not bool(((stored.loss_mask == 0) | (stored.loss_mask == 1)).all()):
        odd = sorted(set(stored.loss_mask.tolist()) - {0, 1})[:3]
        raise DataError(f"{path}: its loss mask holds {', '.join(map(str, odd))}, and only 0 and 1 are known. {REMEDY}")
    return stored


def require_computed(path: Path, columns: list[Tensor]) -> None:
    """Raises DataError for a state that is the same number throughout: a buffer that was never filled."""
    for number, column in enumerate(columns):
        first = column[0, 0]
        if bool((column[0] == first).all()) and bool((column == first).all()):
            which = "its last state" if number == len(columns) - 1 else f"state {number} of it"
            raise DataError(f"{path}: {which} is {float(first):g} throughout, which no model computes. {REMEDY}")


REMEDY = "Make the file again, or take it away to leave its sequence out."
