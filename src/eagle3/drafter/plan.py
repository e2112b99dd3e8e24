"""Which rows of a batch training-time test touches at all; from ids and masks alone, so also in a data worker.

At a position where no step is scored only the step-0 key and value are ever seen, by later positions of the same
document: no query, MLP, output head or later step is needed there. After a document's last scored position nothing is.
Of several layers that holds for the last; the step-0 results of the others are the next one's keys and values.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from eagle3.drafter.batch import Batch, valid_positions


@dataclass(frozen=True)
class Segment:
    """One document's rows: queries `[q0, q1)` among the active, keys `[k0, k1)` among the needed."""

    q0: int
    q1: int
    k0: int
    k1: int


@dataclass(frozen=True)
class Spans:
    """The active rows as attention over documents of unequal lengths takes them: each document's as one span of
    neighbours, which ends with its keys, so that the last query sees the last key, the one before all but the last, ...

    Between the active rows of a document (the user's turns in a conversation) a span has rows that nothing is read of.
    """

    starts: Tensor
    """[documents + 1] int32: each span's first row, and the end."""
    key_starts: Tensor
    """[documents + 1] int32: the same of the keys."""
    longest: int
    longest_keys: int
    rows: int
    """Of all spans."""
    place: Tensor | None
    """[n]: which of these rows each active one is; null where they are the same."""

    @staticmethod
    def of(segments: list[Segment], active_in_needed: Tensor) -> "Spans":
        at = active_in_needed.tolist()
        starts, key_starts, moved = [0], [0], []
        for segment in segments:
            first = at[segment.q0]
            moved += [starts[-1] - first] * (segment.q1 - segment.q0)
            starts.append(starts[-1] + at[segment.q1 - 1] + 1 - first)
            key_starts.append(segment.k1)
        device = active_in_needed.device
        place = active_in_needed + torch.tensor(moved, dtype=torch.int64, device=device)
        return Spans(
            starts=torch.tensor(starts, dtype=torch.int32, device=device),
            key_starts=torch.tensor(key_starts, dtype=torch.int32, device=device),
            longest=max((b - a for a, b in pairwise(starts)), default=0),
            longest_keys=max((b - a for a, b in pairwise(key_starts)), default=0),
            rows=starts[-1],
            place=None if starts[-1] == len(at) else place,
        )


@dataclass(frozen=True)
class Queries:
    """Rows that attend to the keys of the needed rows."""

    in_needed: Tensor
    """[n] which of the needed rows they are, ascending."""
    segments: list[Segment]
    spans: Spans


@dataclass(frozen=True)
class Plan:
    steps: int
    valid: Tensor
    """[steps, T] bool."""
    counts: Tensor
    """[steps] int64."""
    active: Tensor
    """[n] positions where at least one step is scored, ascending."""
    needed: Tensor
    """[r] positions whose step-0 key an active one sees (the active ones among them), ascending."""
    active_in_needed: Tensor
    """[n] rows of `needed`."""
    scored: list[Tensor]
    """Of each step, the rows of `active` that are scored."""
    targets: Tensor
    """[P] positions whose target distribution some step is compared with, ascending."""
    target_rows: list[Tensor]
    """Of each step, the row of `targets` for each scored row."""
    segments: list[Segment]
    spans: Spans

    @property
    def queries(self) -> Queries:
        """The active rows."""
        return Queries(self.active_in_needed, self.segments, self.spans)

    @property
    def needed_queries(self) -> Queries:
        """All needed rows: of a layer whose results are another layer's keys."""
        segments = [Segment(s.k0, s.k1, s.k0, s.k1) for s in self.segments]
        keys, longest = self.spans.key_starts, self.spans.longest_keys
        rows = torch.arange(len(self.needed), device=self.needed.device)
        return Queries(rows, segments, Spans(keys, keys, longest, longest, len(rows), None))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Plan":
        """The same plan with every tensor changed: pinned, or on another device."""

        def changed(value: Any) -> Any:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, Plan | Spans):
                return replace(value, **{item.name: changed(getattr(value, item.name)) for item in fields(value)})
            return [changed(item) for item in value] if isinstance(value, list) else value

        return changed(self)  # type: ignore[no-any-return]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Plan":
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    @staticmethod
    def of(batch: Batch, steps: int) -> "Plan":
        valid = valid_positions(batch.loss_mask, batch.document, steps)
        tokens = valid.shape[1]
        is_active = valid.any(0)
        active = is_active.nonzero()[:, 0]
        # A document's keys end at its last active position.
        starts = torch.ones_like(is_active)
        starts[1:] = batch.document[1:] != batch.document[:-1]
        index = starts.cumsum(0) - 1
        last = torch.full((int(index[-1]) + 1 if tokens else 0,), -1, dtype=torch.int64, device=valid.device)
        last.scatter_reduce_(0, index[active], active, "amax")
        here = torch.arange(tokens, device=valid.device)
        needed = (here <= last[index]).nonzero()[:, 0]
        row_of = torch.zeros(tokens, dtype=torch.int64, device=valid.device)
        row_of[needed] = torch.arange(needed.shape[0], device=valid.device)

        is_target = torch.zeros_like(is_active)
        for k in range(steps):
            is_target[valid[k].nonzero()[:, 0] + 1 + k] = True
        targets = is_target.nonzero()[:, 0]
        slot = torch.zeros(tokens, dtype=torch.int64, device=valid.device)
        slot[targets] = torch.arange(targets.shape[0], device=valid.device)
        scored = [valid[k, active].nonzero()[:, 0] for k in range(steps)]

        queries = torch.bincount(index[active], minlength=last.shape[0]).tolist() if tokens else []
        keys = torch.bincount(index[needed], minlength=last.shape[0]).tolist() if tokens else []
        segments, q, r = [], 0, 0
        for n, m in zip(queries, keys, strict=True):
            if n:
                segments.append(Segment(q, q + n, r, r + m))
            q, r = q + n, r + m
        return Plan(
            steps=steps,
            valid=valid,
            counts=valid.sum(-1),
            active=active,
            needed=needed,
            active_in_needed=row_of[active],
            scored=scored,
            targets=targets,
            target_rows=[slot[active[rows] + 1 + k] for k, rows in enumerate(scored)],
            segments=segments,
            spans=Spans.of(segments, row_of[active]),
        )
