"""What training reads of a dataset of hidden states: the sequences of one split, and of them the states asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from eagle3.data.buffers import Buffers
from eagle3.data.layout import FINAL
from eagle3.data.packing import scored_counts
from eagle3.data.placement import read_prompts
from eagle3.data.shards import HiddenStates
from eagle3.drafter.batch import Batch
from eagle3.errors import DataError


@dataclass(frozen=True)
class Split:
    """Which sequences of a `HiddenStates` are trained on, and which measure the result."""

    train: np.ndarray
    """[n] int64, positions in the dataset."""
    held_out: np.ndarray
    """[m] int64, positions in the dataset."""

    @staticmethod
    def of(states: HiddenStates, prompts: Path) -> "Split":
        """By `held_out` of prepare's prompts.safetensors, through the sample ids.

        Raises:
            DataError: the dataset was not made from these prompts, or one of the two parts is empty.
        """
        known, all_lengths, held_out = _index_of(prompts)
        ids = states.sample_ids.numpy()
        order = np.argsort(known)
        where = np.searchsorted(known, ids, sorter=order).clip(max=max(len(order) - 1, 0))
        rows = order[where] if len(order) else np.zeros(len(ids), np.int64)
        remedy = "It was extracted from other prompts: extract again, or train on the prompts it was made from."
        strange = ids[known[rows] != ids] if len(order) else ids
        if len(strange):
            raise DataError(
                f"{states.folder}: {len(strange)} sequences (the first is sample {strange[0]}) are not in {prompts}. "
                + remedy
            )
        lengths = all_lengths[rows]
        wrong = np.flatnonzero(lengths != states.lengths.numpy())
        if len(wrong):
            i = wrong[0]
            raise DataError(
                f"{states.folder}: sample {ids[i]} has {int(states.lengths[i])} tokens, but {lengths[i]} in {prompts}. "
                + remedy
            )
        kept = held_out[rows] != 0
        split = Split(train=np.flatnonzero(~kept), held_out=np.flatnonzero(kept))
        for part, name in ((split.train, "train on"), (split.held_out, "hold out")):
            if not len(part):
                raise DataError(
                    f"{states.folder}: of {len(ids)} sequences there is none to {name}. "
                    "Add conversations, or change dataset.held_out."
                )
        return split


def _index_of(prompts: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sample ids, lengths, held_out), each `[n]`, without the tokens."""
    path, (ids, offsets, held_out) = read_prompts(prompts, ("sample_ids", "offsets", "held_out"))
    if not len(ids) == len(held_out) == len(offsets) - 1:
        raise DataError(f"{path}: held_out or offsets has another length than sample_ids. Remove it, prepare again.")
    return ids, np.diff(offsets), held_out


class SequenceDataset(Dataset[dict[str, Tensor]]):
    """Some sequences of a dataset; a state that is not asked for is never touched.

    `target_top`, the target's arg-max at each token of the split (`targets.py`), is filled in by whoever has it.
    """

    def __init__(self, states: HiddenStates, rows: np.ndarray, boundaries: Sequence[int]) -> None:
        """Raises DataError for a boundary that was not captured."""
        self.states = states
        self.rows = rows
        self.boundaries = sorted(boundaries)
        self.names = [f"boundary.{b}" for b in self.boundaries]
        missing = sorted(set(self.boundaries) - set(states.manifest.boundaries))
        if missing:
            raise DataError(
                f"{states.folder} has boundaries {states.manifest.boundaries}, not {missing}. "
                "Choose layers.boundaries among them, or extract with a layers.capture that has them."
            )
        self.lengths: np.ndarray = states.lengths.numpy()[rows]
        """[n] int64, in tokens."""
        self.sample_ids: np.ndarray = states.sample_ids.numpy()[rows]
        """[n] int64."""
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        """[n+1] int64: where each sequence begins among all tokens of the split."""
        self._buffers = Buffers()
        self.target_top: Tensor | None = None
        """[sum of lengths] int32."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """`input_ids [S] int32`, `loss_mask [S] uint8`, the boundaries and `final`, each `[S, H]`."""
        return self.states.read(int(self.rows[i]), ["input_ids", "loss_mask", *self.names, FINAL])

    def ids_and_mask(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids `[T] int32` and loss mask `[T] uint8` of all sequences; no state is touched."""
        ids, begins = self.states.whole("input_ids")
        mask, _ = self.states.whole("loss_mask")
        begins = begins[self.rows]
        ends = begins + self.lengths
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1  # neighbours are copied together
        spans = list(zip(begins[np.append(0, breaks)], ends[np.append(breaks - 1, -1)], strict=True))
        return np.concatenate([ids[a:b] for a, b in spans]), np.concatenate([mask[a:b] for a, b in spans])

    def scored(self, steps: int) -> np.ndarray:
        """`[n, steps]` int64: how many positions of each sequence the training-time-test steps score."""
        mask, begins = self.states.whole("loss_mask")
        begins = begins[self.rows]
        return scored_counts(mask, begins, begins + self.lengths, steps)

    def batch(self, chosen: Sequence[int], pin: bool = False) -> Batch:
        """The chosen sequences one after the other; each state is copied once, into (pinned) memory that is the batch's
        as long as one of its tensors lives."""
        lengths = [int(self.lengths[i]) for i in chosen]
        T, H = sum(lengths), self.states.manifest.hidden_size
        dtype = self.states.dtype

        def room(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(size, dtype=dtype, pin_memory=pin)

        width = T * H * len(self.names)
        if pin or not T:
            both = room(width + T * H, dtype=dtype)
        else:
            both = self._buffers.take((width + T * H) * dtype.itemsize).view(dtype)
        states, final = both[:width].view(T, H * len(self.names)), both[width:].view(T, H)
        input_ids, position = room(T, dtype=torch.int64), room(T, dtype=torch.int64)
        loss_mask, document = room(T, dtype=torch.bool), room(T, dtype=torch.int32)
        top = None if self.target_top is None else room(T, dtype=torch.int64)
        start = 0
        for n, (i, length) in enumerate(zip(chosen, lengths, strict=True)):
            to = slice(start, start + length)
            into = {name: states[to, k * H : (k + 1) * H] for k, name in enumerate(self.names)}
            into |= {FINAL: final[to], "input_ids": input_ids[to], "loss_mask": loss_mask[to]}
            self.states.copy(int(self.rows[i]), into)
            document[to] = n
            torch.arange(length, out=position[to])
            if top is not None and self.target_top is not None:
                top[to].copy_(self.target_top[self.offsets[i] : self.offsets[i + 1]])
            start += length
        ids = torch.from_numpy(self.sample_ids[list(chosen)])
        return Batch(input_ids, loss_mask, document, position, states, final, ids.pin_memory() if pin else ids, top)
