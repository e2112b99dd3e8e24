"""Watches that losses and gradients stay numbers, without waiting for the device in every step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.errors import TrainingError

NAMED = 20
"""Samples named in the message, at most."""


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
        self._unseen.append(_Seen("loss", step, [sample_ids], loss.detach()))

    def gradient(self, step: int, norm: Tensor) -> None:
        """`norm []` of the gradient of all micro-batches since the last call."""
        self._unseen.append(_Seen("norm of the gradient", step, self._together, norm.detach()))
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
        for seen, value in zip(unseen, values, strict=True):
            if not abs(value) < float("inf"):
                ids = sorted(int(i) for i in torch.cat(seen.sample_ids).tolist())
                shown = ", ".join(map(str, ids[:NAMED])) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
                raise TrainingError(
                    f"The {seen.what} became {value} in step {seen.step + 1}, with samples {shown}. "
                    "Look at their states with `eagle3 verify`; if those are sound, lower optim.lr. "
                    "The last checkpoint is from before, and the same command continues from it."
                )
