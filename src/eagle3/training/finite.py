"""Watches that losses, gradients and weights stay numbers, without waiting for the device in every step."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor
from torch.distributed.tensor import DTensor

from eagle3.errors import TrainingError

NAMED = 20
"""Samples named in the message, at most."""
LOSS, GRADIENT, WEIGHTS = "loss", "norm of the gradient", "norm of the weights"


@dataclass(frozen=True)
class _Seen:
    what: str
    step: int
    sample_ids: list[Tensor]
    value: Tensor


class FiniteWatch:
    """Notes figures of each step, and looks at all of them when asked."""

    def __init__(self) -> None:
        self.saved: int | None = None
        """Optimiser steps behind the last checkpoint; None where there is none."""
        self._unseen: list[_Seen] = []
        self._together: list[Tensor] = []
        self._held_out: list[tuple[Tensor, Tensor]] = []

    def loss(self, step: int, sample_ids: Tensor, loss: Tensor) -> None:
        """`loss []` of the micro-batch with samples `sample_ids [n]`, before optimiser step `step`."""
        self._together.append(sample_ids)
        self._unseen.append(_Seen(LOSS, step, [sample_ids], loss.detach()))

    def gradient(self, step: int, norm: Tensor) -> None:
        """`norm []` of the gradient of all micro-batches since the last call, of all ranks."""
        self._unseen.append(_Seen(GRADIENT, step, self._together, norm.detach()))
        self._together = []

    def weights(self, steps: int, parameters: Iterable[Tensor]) -> None:
        """Of all ranks, which call it together, after `steps` optimiser steps."""
        norm = torch.nn.utils.get_total_norm([p.detach() for p in parameters])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._unseen.append(_Seen(WEIGHTS, steps - 1, [], norm))

    def held_out(self, sample_ids: Tensor, loss: Tensor) -> None:
        """`loss []` of a held-out batch with samples `sample_ids [n]`."""
        self._held_out.append((sample_ids, loss.detach()))

    def check(self) -> None:
        """Looks at what was noted since the last time.

        Raises:
            TrainingError: a figure is not finite. It names the step and the sequences; the weights are not to be saved.
        """
        unseen, self._unseen = self._unseen, []
        if not unseen:
            return
        values = torch.stack([seen.value.float() for seen in unseen]).tolist()
        wrong = [(seen, value) for seen, value in zip(unseen, values, strict=True) if not math.isfinite(value)]
        if not wrong:
            return
        seen, value = wrong[0]
        if seen.what == WEIGHTS:
            raise TrainingError(
                f"The {WEIGHTS} became {value} in step {seen.step + 1}, with losses and gradients that are numbers: "
                f"{_LOWER}. {self._kept()}"
            )
        ids = [int(i) for i in torch.cat(seen.sample_ids).tolist()]
        told = (seen.step, seen.what == GRADIENT, value, ids)
        if any(other.what == GRADIENT for other, _ in wrong):
            told = _earliest(told)
        step, of_gradient, value, ids = told
        raise TrainingError(
            f"The {GRADIENT if of_gradient else LOSS} became {value} in step {step + 1}, with samples {_named(ids)}. "
            f"Look at their states with `eagle3 verify`; if those are sound, {_LOWER}. {self._kept()}"
        )

    def check_held_out(self, steps: int, loss: float) -> None:
        """Looks at a validation after `steps` optimiser steps.

        Args:
            loss: of all batches of all ranks, which call it together.

        Raises:
            TrainingError: it is not finite. It names the sequences of the batches that are to blame.
        """
        noted, self._held_out = self._held_out, []
        if math.isfinite(loss):
            return
        ids = [i for samples, value in noted if not math.isfinite(value) for i in samples.tolist()]
        raise TrainingError(
            f"The held-out {LOSS} is {loss} after step {steps}, with samples {_named(_of_all_ranks(ids))}. Look at "
            f"their states with `eagle3 verify`; if those are sound, {_LOWER}. {self._kept()}"
        )

    def _kept(self) -> str:
        if self.saved is None:
            return NONE_SAVED
        return f"The checkpoint of step {self.saved} is kept: the same command continues from it."


NONE_SAVED = "No checkpoint was saved before: the same command begins anew."
_LOWER = "lower optim.lr, which is a training of its own and begins with step 1"


def _named(ids: list[int]) -> str:
    ids = sorted(ids)
    return ", ".join(map(str, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def _gathered(mine: Any) -> list[Any]:
    if not (distributed.is_available() and distributed.is_initialized()):
        return [mine]
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    return gathered


def _of_all_ranks(ids: list[int]) -> list[int]:
    return [i for one in _gathered(ids) for i in one]


def _earliest(mine: tuple[int, bool, float, list[int]]) -> tuple[int, bool, float, list[int]]:
    """Of all ranks: a gradient is wrong on all of them at once, and one of them knows the loss that it comes from."""
    gathered = _gathered(mine)
    step, of_gradient, value, ids = min(gathered, key=lambda one: one[:2])
    return step, of_gradient, value, [i for one in gathered for i in one[3]] if of_gradient else ids
