"""Whether two drafters differ by more than chance: by their seeds, else by the conversations they were measured on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3.evaluation.sequences import Sequences, accept_length, drawn

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
    """The difference of two figures with its interval."""

    difference: float
    low: float
    high: float
    source: str
    interval: str = "95%"
    """What the interval is: of 95%, or that of the repeats of one round each."""

    @property
    def exceeds(self) -> bool:
        """Whether no difference at all would be a surprise."""
        return self.low > 0 or self.high < 0

    def shown(self, of: float | None = None) -> str:
        """The difference and its interval; as shares where it is said of what."""
        return f"{amount(self.difference, of)} ({self.interval}: {amount(self.low, of)} to {amount(self.high, of)})"

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


def seeds_spread(conditional: np.ndarray) -> Spread:
    """`[seeds, steps]`, of at least two seeds."""
    lengths = accept_length(conditional)
    return Spread(conditional.std(0, ddof=1).tolist(), float(lengths.std(ddof=1)), f"{len(conditional)} seeds")


def bootstrap_spread(sequences: Sequences, what: str = "conversations") -> Spread:
    """Of at least two sequences."""
    shares = drawn([sequences])[0]
    return Spread(shares.std(0).tolist(), float(accept_length(shares).std()), _bootstrap(sequences, what))


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


def by_repeats(difference: float, ours: tuple[float, float], theirs: tuple[float, float]) -> Verdict:
    """From the smallest to the largest difference of any repeats: what one start of a server each can tell.

    Args:
        difference: of the medians.
        ours, theirs: smallest and largest.
    """
    return Verdict(difference, ours[0] - theirs[1], ours[1] - theirs[0], "repeats of one round", "repeats")


def by_sequences(ours: Sequences, theirs: Sequences, what: str = "conversations") -> Verdict:
    """Paired bootstrap: both drafters on the same draws of the held-out sequences, at least two, the same ones."""
    mine, other = (accept_length(shares) for shares in drawn([ours, theirs]))
    low, high = np.quantile(mine - other, [0.025, 0.975])
    difference = float(accept_length(ours.conditional) - accept_length(theirs.conditional))
    return Verdict(difference, float(low), float(high), _bootstrap(ours, what))


def _bootstrap(sequences: Sequences, what: str) -> str:
    return f"bootstrap of {len(sequences.ids)} {what}"
