"""Whether two drafters differ by more than chance: by their seeds, else by the conversations they were measured on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3.comparison.runs import Sequences

DRAWS = 2000
"""Of the bootstrap; always the same ones, so that a table says the same each time."""
_DRAWN_AT_A_TIME = 100
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for 95%, two-sided, for 1, 2, ... degrees of freedom."""
_NORMAL95 = 1.96


@dataclass(frozen=True)
class Spread:
    """One standard deviation, and of what."""

    by_step: list[float]
    accept_length: float
    source: str
    """seeds or bootstrap."""


@dataclass(frozen=True)
class Verdict:
    """The difference of two accept lengths with its 95% interval."""

    difference: float
    low: float
    high: float
    source: str

    @property
    def exceeds(self) -> bool:
        """Whether no difference at all would be a surprise."""
        return self.low > 0 or self.high < 0

    def shown(self, of: float | None = None) -> str:
        """The difference and its interval; as shares where it is said of what."""
        return f"{amount(self.difference, of)} (95%: {amount(self.low, of)} to {amount(self.high, of)})"

    def behind(self, of: float | None = None) -> str:
        """As a cell: `equal`, the difference, or that it is a tie."""
        if is_equal(self.difference, of) and not self.exceeds:
            return "equal"
        return self.shown(of) if self.exceeds else f"tie: {self.shown(of)}"


def amount(difference: float, of: float | None = None) -> str:
    """`+0.029`, or `+3.6%` of what is said; never -0."""
    if is_equal(difference, of):
        difference = 0.0
    return f"{difference:+.3f}" if of is None else f"{difference / of:+.1%}"


def is_equal(difference: float, of: float | None = None) -> bool:
    """Whether nothing is left of it in the digits that are shown."""
    return abs(difference) < 0.0005 * (1.0 if of is None else abs(of))


def accept_length(conditional: np.ndarray) -> np.ndarray:
    """`[..., steps]` conditional acceptances to `[...]`: 1 + a0 + a0 a1 + ..."""
    return 1 + np.cumprod(conditional, axis=-1).sum(-1)


def seeds_spread(conditional: np.ndarray) -> Spread:
    """`[seeds, steps]`, of at least two seeds."""
    lengths = accept_length(conditional)
    return Spread(conditional.std(0, ddof=1).tolist(), float(lengths.std(ddof=1)), f"{len(conditional)} seeds")


def bootstrap_spread(sequences: Sequences) -> Spread:
    shares = _drawn([sequences])[0]
    lengths = accept_length(shares)
    count = f"bootstrap of {len(sequences.ids)} conversations"
    return Spread(shares.std(0).tolist(), float(lengths.std()), count)


def by_seeds(ours: Sequence[float], theirs: Sequence[float], what: str = "seeds") -> Verdict:
    """Welch's interval of the difference of means; at least two seeds (or rounds) on either side."""
    a, b = np.asarray(ours), np.asarray(theirs)
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    difference, error = float(a.mean() - b.mean()), float(np.sqrt(va + vb))
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)) if error else 1.0
    # Between whole degrees t is nearly linear in their inverse, and a little below the line.
    inverse = [0.0, *(1 / n for n in range(len(_T95), 0, -1))]
    t = float(np.interp(1 / freedom, inverse, [_NORMAL95, *reversed(_T95)]))
    return Verdict(difference, difference - t * error, difference + t * error, f"{len(a)} and {len(b)} {what}")


def by_sequences(ours: Sequences, theirs: Sequences) -> Verdict:
    """Paired bootstrap: both drafters on the same draws of the held-out sequences, whose ids must be the same."""
    mine, other = (accept_length(shares) for shares in _drawn([ours, theirs]))
    low, high = np.quantile(mine - other, [0.025, 0.975])
    difference = _accept_length(ours) - _accept_length(theirs)
    return Verdict(difference, float(low), float(high), f"bootstrap of {len(ours.ids)} conversations")


def _accept_length(one: Sequences) -> float:
    return float(accept_length(_shares(one.accepted.sum(0), one.reached.sum(0))))


def _drawn(several: list[Sequences]) -> list[np.ndarray]:
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
