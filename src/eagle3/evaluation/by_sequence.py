"""Counts acceptance of each held-out sequence by itself while batches of them are measured."""

import torch
from torch import Tensor

from eagle3.drafter.batch import Batch
from eagle3.drafter.plan import Plan
from eagle3.evaluation.sequences import Sequences


class BySequence:
    """Counts for each sequence and TTT step the positions reached, and those accepted, as `Totals` counts over all."""

    def __init__(self) -> None:
        self._ids: list[Tensor] = []
        self._reached: list[Tensor] = []
        self._accepted: list[Tensor] = []

    def add(self, batch: Batch, plan: Plan, choices: Tensor) -> None:
        """`choices`: `TttResult.choices` of this batch and plan; the batch has `target_top`."""
        assert batch.target_top is not None
        count, document = batch.sample_ids.shape[0], batch.document[plan.active].long()
        reached = plan.valid[0, plan.active]
        by_step: tuple[list[Tensor], list[Tensor]] = ([], [])
        for k, (rows, drafted) in enumerate(
            zip(plan.scored, choices.split([len(rows) for rows in plan.scored]), strict=True)
        ):
            right = torch.zeros_like(reached)
            right[rows] = drafted == batch.target_top[plan.active[rows] + 1 + k]
            reached = reached & plan.valid[k, plan.active]
            by_step[0].append(torch.bincount(document[reached], minlength=count))
            reached = reached & right
            by_step[1].append(torch.bincount(document[reached], minlength=count))
        self._ids.append(batch.sample_ids.cpu())
        self._reached.append(torch.stack(by_step[0], dim=1).int().cpu())
        self._accepted.append(torch.stack(by_step[1], dim=1).int().cpu())

    def counts(self) -> Sequences:
        """Of all that were added, in their order."""
        return Sequences(*(torch.cat(parts).numpy() for parts in (self._ids, self._reached, self._accepted)))
