"""By one figure: the configurations, best first, each with its spread and how far it is behind the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.comparison.figures import BENCH, EVALUATE, figures_in, show_spread, stage_of
from eagle3.comparison.noise import Verdict, amount, by_seeds, is_equal
from eagle3.comparison.variants import Variant, judge

ACCEPT_LENGTH = "eval/accept_length"


@dataclass(frozen=True)
class Place:
    """A configuration's place."""

    variant: Variant
    mean: float
    spread: float | None
    """One standard deviation; None where it is not known."""
    count: int
    """Seeds of a drafter, or rounds of the served target."""
    verdict: Verdict | str
    """How far the best is ahead, or why that is not known; "" of the best itself."""
    behind: str
    """The verdict as a cell: `best`, `tie: ...`, `equal`, the difference."""
    exceeds: bool
    """Whether it is behind by more than noise."""
    lost: float | None
    """How far it is behind; None where it can't be compared."""


@dataclass(frozen=True)
class Ranking:
    """All places by a figure; the first is the best."""

    figure: str
    """Its name in report/summary.json."""
    title: str
    places: list[Place]

    @property
    def repeats(self) -> str:
        return "rounds" if stage_of(self.figure) == BENCH else "seeds"

    def headings(self) -> list[str]:
        return ["configuration", self.title, self.repeats, "behind the best"]

    def rows(self) -> list[list[str]]:
        return [
            [place.variant.label, show_spread(self.figure, place.mean, place.spread), str(place.count), place.behind]
            for place in self.places
        ]

    def sentence(self) -> str:
        """The best, and which others can't be told from it."""
        best, *others = self.places
        said = f"{self.title[0].upper()}{self.title[1:]}: "
        said += f"{best.variant.label} {show_spread(self.figure, best.mean, best.spread)}"
        if not others:
            return f"{said}."
        if any(isinstance(place.verdict, str) for place in others):
            return f"{said}, highest; the spread of single {self.repeats} is not known."
        ties = [place.variant.label for place in others if not place.exceeds]
        if ties:
            return f"{said}, tie with {', '.join(ties)}."
        return f"{said}; next {others[0].variant.label}, behind by {others[0].behind}."


def rankings_of(drafters: Sequence[Variant], served: Sequence[Variant]) -> list[Ranking]:
    """Of every figure that some configuration has, in the order of FIGURES.

    Args:
        served: configurations of the served target that was measured.
    """
    names = {name for variant in [*drafters, *served] for run in variant.runs for name in run.summary}
    found = []
    for figure, title in figures_in(names).items():
        places = _places(figure, drafters if stage_of(figure) == EVALUATE else served)
        if places:
            found.append(Ranking(figure, title, places))
    return found


def _mean(figure: str, variant: Variant) -> float | None:
    return variant.accept_length() if figure == ACCEPT_LENGTH else variant.figure(figure)


def _places(figure: str, variants: Sequence[Variant]) -> list[Place]:
    known = [(mean, variant) for variant in variants if (mean := _mean(figure, variant)) is not None]
    known.sort(key=lambda pair: -pair[0])
    return [_place(figure, variant, mean, known[0][1], known[0][0]) for mean, variant in known]


def _place(figure: str, variant: Variant, mean: float, best: Variant, highest: float) -> Place:
    of = None if figure == ACCEPT_LENGTH else highest
    spread = variant.deviation(figure)
    count = len(variant.values(figure))
    if figure == ACCEPT_LENGTH:
        spread, count = None if variant.spread is None else variant.spread.accept_length, len(variant.distinct)
    if variant is best:
        return Place(variant, mean, spread, count, "", "best", False, 0.0)
    verdict = judge(best, variant) if figure == ACCEPT_LENGTH else _by_values(figure, best, variant)
    exceeds = isinstance(verdict, Verdict) and verdict.exceeds
    behind = verdict.behind(of) if isinstance(verdict, Verdict) else verdict
    if not behind:
        lost = highest - mean
        behind = "equal" if is_equal(lost, of) else f"{amount(lost, of)}, spread not known"
    comparable = isinstance(verdict, Verdict) or not verdict
    return Place(variant, mean, spread, count, verdict, behind, exceeds, highest - mean if comparable else None)


def _by_values(figure: str, best: Variant, other: Variant) -> Verdict | str:
    """By the repeats; "" where one side has no more than one."""
    if not _alike(figure, best, other):
        return "measured in another way or for another target"
    ours, theirs = best.values(figure), other.values(figure)
    what = "rounds" if stage_of(figure) == BENCH else "seeds"
    return by_seeds(ours, theirs, what) if len(ours) > 1 and len(theirs) > 1 else ""


def _alike(figure: str, best: Variant, other: Variant) -> bool:
    def measured(variant: Variant) -> set[Any]:
        if stage_of(figure) == EVALUATE:
            return {run.measured_on for run in variant.runs}
        return {(run.provenance.get("target") or {}).get("fingerprint") for run in variant.runs}

    return len(measured(best) | measured(other)) == 1
