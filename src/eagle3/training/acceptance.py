"""Figures of a drafter from the sums of training-time test: loss, accuracy, and simulated acceptance.

Conditional acceptance of step k: how often step k is right where all earlier steps were. Simulated accept length
(EAGLE-3, arXiv 2503.01840, section 4): tau = 1 + a_0 + a_0 a_1 + ..., the tokens a verification yields with greedy
decoding and a chain of as many drafts as there are steps; the 1 is the target's own token.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eagle3.drafter.ttt import TttResult

FIELDS = ("loss_sum", "valid", "correct", "reached", "accepted", "in_vocabulary")


def accept_length(conditional: Sequence[float]) -> float:
    """tau of the conditional acceptances a_0, a_1, ..."""
    total, product = 1.0, 1.0
    for a in conditional:
        product *= a
        total += product
    return total


class Totals:
    """Running sums over batches, kept on their device: adding does not wait for it."""

    def __init__(self, steps: int, decay: float) -> None:
        """`decay`: weight of step k's loss is decay ** k."""
        self.steps, self.decay = steps, decay
        self._sums: Tensor | None = None

    def add(self, result: TttResult) -> None:
        parts = [getattr(result, name).detach().to(torch.float64) for name in FIELDS]
        sums = torch.stack(parts)
        self._sums = sums if self._sums is None else self._sums + sums

    def take(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> "Figures":
        """What was added since the last time; `reduce` sums over ranks."""
        figures = self.peek(reduce)
        self._sums = None
        return figures

    def peek(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> "Figures":
        """As `take`, and it stays."""
        sums = torch.zeros(len(FIELDS), self.steps, dtype=torch.float64) if self._sums is None else self._sums
        return Figures(reduce(sums).tolist(), self.decay)


class Figures:
    """Of so many positions, as plain numbers; a step that no position reached has accuracy and acceptance 0."""

    def __init__(self, sums: list[list[float]], decay: float) -> None:
        values = dict(zip(FIELDS, sums, strict=True))
        self.valid = [int(n) for n in values["valid"]]
        """Scored positions of each step."""
        self.reached = [int(n) for n in values["reached"]]
        """Of them, where all earlier steps were right."""
        self.accepted = [int(n) for n in values["accepted"]]
        """Of these, where this step is right too."""
        self.loss_by_step = _shares(values["loss_sum"], self.valid)
        self.accuracy = _shares(values["correct"], self.valid)
        self.in_vocabulary = _shares(values["in_vocabulary"], self.valid)
        self.conditional = _shares(self.accepted, self.reached)
        self.loss = sum(decay**k * loss for k, loss in enumerate(self.loss_by_step))
        self.accept_length = accept_length(self.conditional)

    def metrics(self, stage: str) -> dict[str, float]:
        """`<stage>/loss`, `/loss_step_k`, `/acc_step_k`, `/cond_acc_step_k`, `/accept_length`."""
        named: dict[str, float] = {f"{stage}/loss": self.loss, f"{stage}/accept_length": self.accept_length}
        for name, values in (
            ("loss", self.loss_by_step),
            ("acc", self.accuracy),
            ("cond_acc", self.conditional),
        ):
            named |= {f"{stage}/{name}_step_{k}": value for k, value in enumerate(values)}
        return named

    def histogram(self) -> list[float]:
        """Chance of accepting exactly 0, 1, ..., N drafted tokens, `[N+1]`; by the conditional acceptances.

        So that a position near the end of its turn, where later steps have nothing to predict, biases nothing; the
        mean of it, plus 1, is `accept_length`.
        """
        product, chances = 1.0, []
        for a in self.conditional:
            chances.append(product * (1 - a))
            product *= a
        return [*chances, product]


def _shares(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [part / whole if whole else 0.0 for part, whole in zip(parts, wholes, strict=True)]
