"""Which sequences go into which micro-batch: whole sequences, from their lengths alone, so without reading any."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from eagle3.errors import DataError

PACKED_AHEAD = 100_000
"""Sequences, over all epochs, that may be packed before the first batch: about a quarter of a second."""
SPARE = 500
"""One batch more for so many: packing at random hardly varies where there are many sequences."""


def best_fit(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Puts each sequence, in the given order, into the open batch that it fills best; a batch holds at most `budget`.

    A sequence as long as the budget, or longer, is a batch of its own. O(n) with a set of the free spaces kept as the
    bits of one integer: the best space is its lowest bit at or above the length.
    """
    batches: list[list[int]] = []
    with_space: dict[int, list[int]] = {}
    spaces = 0
    for i in order:
        length = lengths[i]
        if length >= budget:
            batches.append([i])
            continue
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            chosen = with_space[space].pop()
            if not with_space[space]:
                spaces ^= 1 << space
        else:
            space, chosen = budget, len(batches)
            batches.append([])
        batches[chosen].append(i)
        left = space - length
        if left:
            with_space.setdefault(left, []).append(chosen)
            spaces |= 1 << left
    return batches


def split_to(batches: list[list[int]], count: int) -> list[list[int]]:
    """Halves the batches of most sequences until there are `count`; as they were where there are that many already.

    Raises:
        DataError: there are fewer sequences than that.
    """
    if sum(len(batch) for batch in batches) < count:
        raise DataError(
            f"{sum(len(batch) for batch in batches)} sequences are too few for {count} batches, of which every device "
            "takes as many: give trainer.devices less, or more conversations."
        )
    batches = list(batches)
    while len(batches) < count:
        largest = max(range(len(batches)), key=lambda b: len(batches[b]))
        batch = batches[largest]
        batches[largest] = batch[: len(batch) // 2]
        batches.append(batch[len(batch) // 2 :])
    return batches


@dataclass(frozen=True, eq=False)
class Packing:
    """The micro-batches of every epoch; the same for the same arguments, on any machine.

    Each epoch has every sequence exactly once, in a new order and new company, in equally many batches (`count`):
    the number of optimiser steps is known, and every rank has as many as the others.
    """

    lengths: np.ndarray
    """[n] int64, in tokens."""
    budget: int
    """Tokens of a batch at most, but for a single longer sequence."""
    seed: int
    epochs: int
    world: int = 1
    """Ranks: batch i is that of rank i % world."""

    def _packed(self, epoch: int) -> tuple[list[list[int]], np.random.Generator]:
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self.lengths)).tolist()
        return best_fit(order, self.lengths.tolist(), self.budget), generator

    @cached_property
    def count(self) -> int:
        """Batches of an epoch, over all ranks: the most that any epoch is packed into.

        Where packing them all would delay the start, a few more than the first one takes.
        """
        if self.epochs * len(self.lengths) <= PACKED_AHEAD:
            most = max(len(self._packed(epoch)[0]) for epoch in range(self.epochs))
        else:
            first = len(self._packed(0)[0])
            most = first + first // SPARE
        return -(-most // self.world) * self.world

    @lru_cache(maxsize=2)  # noqa: B019  the few packings of a process live as long as it does
    def epoch(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch: indices into `lengths`."""
        batches, generator = self._packed(epoch)
        if len(batches) > self.count:
            batches = self._exchanged(generator)
        batches = split_to(batches, self.count)
        return [batches[i] for i in generator.permutation(len(batches))]

    def _exchanged(self, generator: np.random.Generator) -> list[list[int]]:
        """The first epoch's batches with sequences of equal length in each other's place: surely as few."""
        order = generator.permutation(len(self.lengths))
        places = np.empty_like(order)
        places[np.argsort(self.lengths, kind="stable")] = order[np.argsort(self.lengths[order], kind="stable")]
        return [places[batch].tolist() for batch in self._packed(0)[0]]

    def of_rank(self, epoch: int, rank: int) -> list[list[int]]:
        return self.epoch(epoch)[rank :: self.world]

    @property
    def fill(self) -> float:
        """Share of the batches' room that is used, in the first epoch; above 1 with sequences beyond the budget."""
        return float(self.lengths.sum() / (self.count * self.budget))


def in_order(lengths: np.ndarray, budget: int) -> list[list[int]]:
    """Batches of neighbours, for reading a split once from its beginning to its end."""
    batches: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths.tolist()):
        if length > room or not batches:
            batches.append([])
            room = budget
        batches[-1].append(i)
        room -= length
    return batches


def scored_counts(loss_mask: np.ndarray, begins: np.ndarray, ends: np.ndarray, steps: int) -> np.ndarray:
    """How many positions of each sequence step k scores: `[n, steps]` int64, from the masks alone.

    Step k at t predicts x_{t+2+k}: the response tokens from position k+2 of their sequence on.

    Args:
        loss_mask: `[T]`, 1 on response tokens.
        begins, ends: `[n]`, of the sequences in it.
    """
    marked = loss_mask != 0
    responses = [np.count_nonzero(marked[a:b]) for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    # The first k+2 are taken away: reading few tokens of each sequence beats running sums over all of them.
    first = begins[:, None] + np.arange(1 + steps)[None, :]
    there = first < ends[:, None]
    early = np.cumsum(marked[np.where(there, first, 0)] & there, axis=1)[:, 1:]
    return np.array(responses, np.int64)[:, None] - early
