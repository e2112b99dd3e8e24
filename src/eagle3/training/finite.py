"""Watches that losses and gradients stay numbers, without waiting for the device in every step."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from eagle3.errors import TrainingError

NAMED = 20
"""Samples named in the message, at most."""
LOSS, GRADIENT = "loss", "norm of the gradient"


@dataclass(frozen=True)
class _Seen:
    what: str
    step: int
    sample_ids: list[Tensor]
    value: Tensor


class FiniteWatch:
    """Notes figures of each step, and looks at all of them when asked."""

    def __init__(self) -> None:
        self._unseen: list[_Seen] = []
        self._together: list[Tensor] = []

    def loss(self, step: int, sample_ids: Tensor, loss: Tensor) -> None:
        """`loss []` of the micro-batch with samples `sample_ids [n]`, before optimiser step `step`."""
        self._together.append(sample_ids)
        self._unseen.append(_Seen(LOSS, step, [sample_ids], loss.detach()))

    def gradient(self, step: int, norm: Tensor) -> None:
        """`norm []` of the gradient of all micro-batches since the last call, of all ranks."""
        self._unseen.append(_Seen(GRADIENT, step, self._together, norm.detach()))
        self._together = []

    def check(self) -> None:
        """Looks at what was noted since the last time.

        Raises:
            TrainingError: a figure is not finite. It names the step and the sequences; the weights are not to be saved.
        """
        unseen, self._unseen = self._unseen, []
        if not unseen:
            return
        values = torch.stack([seen.value.float() for seen in unseen]).tolist()
        wrong = [(seen, value) for seen, value in zip(unseen, values, strict=True) if not abs(value) < float("inf")]
        if not wrong:
            return
        seen, value = wrong[0]
        ids = [int(i) for i in torch.cat(seen.sample_ids).tolist()]
        told = (seen.step, seen.what == GRADIENT, value, ids)
        if any(other.what == GRADIENT for other, _ in wrong):
            told = _earliest(told)
        step, of_gradient, value, ids = told
        ids = sorted(ids)
        shown = ", ".join(map(str, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
        raise TrainingError(
            f"The {GRADIENT if of_gradient else LOSS} became {value} in step {step + 1}, with samples {shown}. "
            "Look at their states with `eagle3 verify`; if those are sound, lower optim.lr. "
            "The last checkpoint is from before, and the same command continues from it."
        )


def _earliest(mine: tuple[int, bool, float, list[int]]) -> tuple[int, bool, float, list[int]]:
    """Of all ranks: a gradient is wrong on all of them at once, and one of them knows the loss that it comes from."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return mine
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    step, of_gradient, value, ids = min(gathered, key=lambda one: one[:2])
    return step, of_gradient, value, [i for one in gathered for i in one[3]] if of_gradient else ids
