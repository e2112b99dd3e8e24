"""By one figure: the configurations, best first, each with its spread and how far it is behind the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eagle3.comparison.figures import BENCH, figures_in, show_spread, stage_of
from eagle3.comparison.noise import Verdict, amount, by_repeats, by_seeds, is_equal
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
    lost: float
    """How far it is behind."""


@dataclass(frozen=True)
class Ranking:
    """All places by a figure; the first is the best."""

    figure: str
    """Its name in report/summary.json."""
    title: str
    places: list[Place]
    measured: str = ""
    """How, where others were measured in another way."""

    @property
    def name(self) -> str:
        """Its title, with how it was measured."""
        return f"{self.title} ({self.measured})" if self.measured else self.title

    @property
    def repeats(self) -> str:
        return "rounds" if stage_of(self.figure) == BENCH else "seeds"

    @property
    def led(self) -> bool:
        """Whether there is a best that others are behind."""
        return len(self.places) > 1

    def headings(self) -> list[str]:
        return ["configuration", self.title, self.repeats, *["behind the best"] * self.led]

    def rows(self) -> list[list[str]]:
        return [
            [
                place.variant.label,
                show_spread(self.figure, place.mean, place.spread),
                str(place.count),
                *[place.behind] * self.led,
            ]
            for place in self.places
        ]

    def best_rows(self) -> list[bool]:
        """Which row stands out: the best of several."""
        return [self.led and place is self.places[0] for place in self.places]

    def sentence(self) -> str:
        """The best, and which others can't be told from it."""
        best, *others = self.places
        said = f"{self.name[0].upper()}{self.name[1:]}: "
        said += f"{best.variant.label} {show_spread(self.figure, best.mean, best.spread)}"
        if not others:
            return f"{said}."
        if any(isinstance(place.verdict, str) for place in others):
            return f"{said}, highest; the spread of single {self.repeats} is not known."
        ties = [place.variant.label for place in others if not place.exceeds]
        if ties:
            return f"{said}, tie with {', '.join(ties)}."
        return f"{said}; next {others[0].variant.label}, behind by {others[0].behind}."


def rankings_of(variants: Sequence[Variant], measured: str = "") -> list[Ranking]:
    """Of every figure that some of these has, all measured alike, in the order in which figures are shown."""
    stage = variants[0].stage
    names = {name for variant in variants for run in variant.runs for name in run.summary}
    figures = {figure: title for figure, title in figures_in(names).items() if stage_of(figure) == stage}
    ranked = [Ranking(figure, title, _places(figure, variants), measured) for figure, title in figures.items()]
    return [ranking for ranking in ranked if ranking.places]


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
    return Place(variant, mean, spread, count, verdict, behind, exceeds, highest - mean)


def _by_values(figure: str, best: Variant, other: Variant) -> Verdict | str:
    """By the rounds or seeds; else by the repeats within a round; "" where neither is known."""
    ours, theirs = best.values(figure), other.values(figure)
    what = "rounds" if stage_of(figure) == BENCH else "seeds"
    if len(ours) > 1 and len(theirs) > 1:
        return by_seeds(ours, theirs, what)
    mine, others = best.reach(figure), other.reach(figure)
    return "" if mine is None or others is None else by_repeats(fmean(ours) - fmean(theirs), mine, others)
