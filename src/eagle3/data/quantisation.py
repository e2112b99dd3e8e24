"""What storing states in 8 bits loses, measured on rows of the proof: the server's bfloat16 against the same in 8 bits.

Rows must also stay tellable from each other, by the measure that the proof compares rows with. Where a component that
all rows share is far larger than what tells them apart, its rounding error alone is larger than that: such states are
refused before the long part begins.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.data.fp8 import dequantise, quantise
from eagle3.data.layout import FINAL
from eagle3.data.proof import HEAD_BLOCK, SHARE_OFF, share_of_rows_off, too_many_off
from eagle3.errors import ProofError

ROWS = 4096
"""Compared at a time."""
POSITIONS = 256
"""Of a sequence, whose predictions are compared: each takes two products with the whole head."""


def as_stored(rows: Tensor) -> Tensor:
    """Rows `[S, H]` bfloat16 as they are read when they were stored in 8 bits."""
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    dequantise(*quantise(rows), out)
    return out


class QuantisationError:
    """Over all sequences that were added; becomes a part of the manifest."""

    def __init__(self, head: Tensor) -> None:
        """`head [V, H]` is the target's output head."""
        self.head = head
        self.sequences = self.tokens = self.positions = self.agreeing = 0
        self.divergence = 0.0
        self.squares: dict[str, tuple[float, float]] = {}
        """State -> sums of the squares of error and value."""
        self.worst: dict[str, float] = {}

    def add(self, what: str, states: dict[str, Tensor]) -> None:
        """Measures one sequence's rows `[S, H]` bfloat16. Raises ProofError where 8 bits are too few for them."""
        for name, rows in states.items():
            stored = as_stored(rows)
            require_tellable(what, name, share_of_rows_off(stored, rows), len(rows))
            for exact, rounded in zip(rows.split(ROWS), stored.split(ROWS), strict=True):
                self._add_rows(name, exact.double(), rounded.double())
            if name == FINAL:
                self._add_predictions(rows, stored)
        self.sequences += 1
        self.tokens += len(states[FINAL])

    def _add_rows(self, name: str, exact: Tensor, rounded: Tensor) -> None:
        error, size = (exact - rounded).norm(dim=-1), exact.norm(dim=-1)
        before = self.squares.get(name, (0.0, 0.0))
        self.squares[name] = (before[0] + float(error.square().sum()), before[1] + float(size.square().sum()))
        worst = float((error / size).nan_to_num(nan=0.0).max())  # a row of zeros is kept as it is
        self.worst[name] = max(self.worst.get(name, 0.0), worst)

    def _add_predictions(self, exact: Tensor, rounded: Tensor) -> None:
        at = torch.linspace(0, len(exact) - 1, min(len(exact), POSITIONS)).long()
        p, q = (
            torch.cat([rows[at].float() @ part.float().T for part in self.head.split(HEAD_BLOCK)], -1).log_softmax(-1)
            for rows in (exact, rounded)
        )
        self.divergence += float(F.kl_div(q, p, reduction="sum", log_target=True))
        self.agreeing += int((p.argmax(-1) == q.argmax(-1)).sum())
        self.positions += len(at)

    def record(self) -> dict[str, Any]:
        """For the manifest; empty when nothing was measured."""
        if not self.sequences:
            return {}
        relative = {name: (error / max(size, 1e-300)) ** 0.5 for name, (error, size) in self.squares.items()}
        return {
            "sequences": self.sequences,
            "tokens": self.tokens,
            "relative_rms": relative,
            "max_relative_row": self.worst,
            "positions": self.positions,
            "kl_divergence": self.divergence / self.positions,
            "top1_agreement": self.agreeing / self.positions,
        }


def require_tellable(what: str, state: str, share: float, count: int) -> None:
    """Raises ProofError when rounding moves too many rows by more than half of what tells them apart."""
    if not too_many_off(share, count):
        return
    raise ProofError(
        f"{what}, {state}: 8 bits are too few for this state. In {share:.0%} of its rows (at most {SHARE_OFF:.0%} is "
        "let pass) rounding is off by more than half of what tells the rows of the sequence apart. "
        "Set dataset.dtype=bfloat16."
    )
