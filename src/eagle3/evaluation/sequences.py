"""Acceptance of each held-out sequence by itself: what tells how far a figure over all of them is to be trusted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from eagle3.files.whole import whole_file

FILE = "sequences.safetensors"
"""In an evaluation and in a report."""
DRAWS = 2000
"""Of the bootstrap; always the same ones, so that a figure says the same each time."""
_DRAWN_AT_A_TIME = 100


@dataclass(frozen=True)
class Sequences:
    """Counts of n sequences; `steps` drafted tokens."""

    ids: np.ndarray
    """[n] int64; two drafters that were asked the same have the same ids in the same order."""
    reached: np.ndarray
    """[n, steps]: positions (or passes of the target) where all earlier drafts were right."""
    accepted: np.ndarray
    """[n, steps]: of these, where this one is right too."""

    def save(self, folder: Path) -> None:
        """Writes sequences.safetensors: `sample_ids [n]` int64, `reached` and `accepted` `[n, steps]` int32."""
        counts = {"reached": self.reached.astype(np.int32), "accepted": self.accepted.astype(np.int32)}
        with whole_file(folder / FILE) as partial:
            save_file({"sample_ids": self.ids.astype(np.int64), **counts}, partial)

    @staticmethod
    def read(folder: Path) -> "Sequences | None":
        """None where the file is not there or is damaged."""
        try:
            with safe_open(folder / FILE, framework="numpy") as file:
                return Sequences(*(file.get_tensor(name) for name in ("sample_ids", "reached", "accepted")))
        except (OSError, SafetensorError):
            return None

    @property
    def conditional(self) -> np.ndarray:
        """[steps]: acceptance of each drafted token, over all sequences."""
        return _shares(self.accepted.sum(0), self.reached.sum(0))

    def metrics(self, stage: str) -> dict[str, Any]:
        """`<stage>/accept_length_spread`; nothing of a single sequence, which tells nothing of others."""
        if len(self.ids) < 2:
            return {}
        return {f"{stage}/accept_length_spread": float(accept_length(drawn([self])[0]).std())}


def accept_length(conditional: np.ndarray) -> np.ndarray:
    """`[..., steps]` conditional acceptances to `[...]`: 1 + a0 + a0 a1 + ..."""
    return 1 + np.cumprod(conditional, axis=-1).sum(-1)


def drawn(several: Sequence[Sequences]) -> list[np.ndarray]:
    """Conditional acceptances `[DRAWS, its steps]` of each, all on the same sequences, drawn with replacement."""
    count = len(several[0].ids)
    random = np.random.default_rng(0)
    found: list[list[np.ndarray]] = [[] for _ in several]
    for _ in range(DRAWS // _DRAWN_AT_A_TIME):
        picked = random.integers(0, count, (_DRAWN_AT_A_TIME, count))
        times = np.stack([np.bincount(row, minlength=count) for row in picked])
        for one, parts in zip(several, found, strict=True):
            parts.append(_shares(times @ one.accepted, times @ one.reached))
    return [np.concatenate(parts) for parts in found]


def _shares(accepted: np.ndarray, reached: np.ndarray) -> np.ndarray:
    return np.divide(accepted, reached, out=np.zeros(reached.shape), where=reached > 0)
