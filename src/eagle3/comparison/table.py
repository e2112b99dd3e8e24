"""The comparison itself: drafters in order, their cells, the best one, and the rankings by each figure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle3.comparison import choose
from eagle3.comparison.columns import Column, columns_of, dataset_of, served_columns
from eagle3.comparison.figures import BENCH, stage_of
from eagle3.comparison.grouping import variants_of
from eagle3.comparison.noise import Spread, Verdict
from eagle3.comparison.ranking import ACCEPT_LENGTH, Place, Ranking, rankings_of
from eagle3.comparison.runs import Note, Run, collect
from eagle3.comparison.variants import Variant
from eagle3.errors import DataError

BEHIND = "behind the best"


class NothingToCompareError(DataError):
    """Not one finished run is at or below the paths."""


@dataclass
class Comparison:
    """What all formats are written from."""

    variants: list[Variant]
    """Of drafters; [] where only the served target was measured."""
    columns: list[Column]
    steps: int
    """Drafted tokens that every drafter has."""
    notes: list[Note]
    rankings: list[Ranking]
    """By each figure that ranks, of drafters and of the served target."""
    served: list[Variant] = field(default_factory=list)
    """Configurations of the served target that were measured."""

    @property
    def by_length(self) -> Ranking | None:
        """The ranking by accept length; None where nothing was evaluated."""
        return next((ranking for ranking in self.rankings if ranking.figure == ACCEPT_LENGTH), None)

    @property
    def best(self) -> Variant | None:
        """By accept length."""
        return None if self.by_length is None else self.by_length.places[0].variant

    @property
    def of_the_target(self) -> list[Ranking]:
        """Those of the served target: decoding and prefill."""
        return [ranking for ranking in self.rankings if stage_of(ranking.figure) == BENCH]

    @property
    def all_runs(self) -> list[Run]:
        """Each once, in the order of the rows."""
        runs = [run for variant in [*self.variants, *self.served] for run in variant.runs]
        return list({id(run): run for run in runs}.values())

    @property
    def title(self) -> str:
        count = len(self.variants)
        if not count:
            count = len(self.served)
            return f"Comparison of {count} {'configuration' if count == 1 else 'configurations'} of the served target"
        return f"Comparison of {count} {'drafter' if count == 1 else 'drafters'}"

    def place(self, variant: Variant) -> Place | None:
        """Its place by accept length; None where it was not evaluated."""
        places = [] if self.by_length is None else self.by_length.places
        return next((place for place in places if place.variant is variant), None)

    def verdict(self, variant: Variant) -> Verdict | str:
        """How far the best is ahead of it in accept length, or why that is not known; "" of the best itself."""
        place = self.place(variant)
        if place is not None:
            return place.verdict
        return "" if self.best is None else "not evaluated"

    @property
    def settings(self) -> list[str]:
        """Headings of what the drafters differ in."""
        return (list(self.variants[0].setting) if self.variants else []) or ["run"]

    def headings(self) -> list[str]:
        """Of the drafters' table."""
        titles = self._with_lead([column.title for column in self.columns], BEHIND)
        return [*self.settings, "seeds", *titles, *["dataset"] * self.several_datasets]

    def rows(self) -> list[list[str]]:
        """Cells as people read them; a figure with its spread, where that is known."""
        rows = []
        for variant in self.variants:
            cells = list(variant.setting.values()) or [variant.label]
            cells.append(str(len(variant.distinct)))
            place = self.place(variant)
            lead = "not evaluated" if place is None else place.behind
            cells += self._with_lead([_cell(column, variant, variant.spread) for column in self.columns], lead)
            rows.append([*cells, *[dataset_of(variant.runs[0])] * self.several_datasets])
        return rows

    def _with_lead(self, figures: list[str], lead: str) -> list[str]:
        """Beside the accept length, which is first, how far it is behind the best: where there is a best."""
        return figures if self.best is None else [figures[0], lead, *figures[1:]]

    @property
    def several_datasets(self) -> bool:
        return len({dataset_of(variant.runs[0]) for variant in self.variants}) > 1


def _cell(column: Column, variant: Variant, spread: Spread | None) -> str:
    value = column.value(variant)
    if value is None:
        return ""
    text = column.show(value)
    if spread is None:
        return text
    if column.key == "accept_length":
        return f"{text} ± {spread.accept_length:.3f}"
    if column.key.startswith("acceptance_"):
        return f"{text} ± {100 * spread.by_step[int(column.key.removeprefix('acceptance_')) - 1]:.1f}"
    return text


def compare(
    paths: Sequence[Path], where: Sequence[str] = (), order: str | None = None, reverse: bool = False
) -> Comparison:
    """Compares all runs at or below the paths.

    Args:
        where: conditions such as `loss.ttt_steps=3`; all must hold.
        order: key of a column, or of the configuration; by default the accept length. Rankings are best first, always.

    Raises:
        NothingToCompareError: not one finished run is there; the message says of each path why.
        DataError: `where` leaves none.
        ConfigError: `where` or `order` name what no run has.
    """
    runs, notes = collect(paths)
    if not runs:
        raise NothingToCompareError("nothing to compare:\n" + "\n".join(f"  {note}" for note in notes))
    return compare_runs(runs, notes, where, order, reverse)


def compare_runs(
    runs: Sequence[Run],
    notes: Sequence[Note] = (),
    where: Sequence[str] = (),
    order: str | None = None,
    reverse: bool = False,
) -> Comparison:
    """`compare` of runs that have been read."""
    before = _grouped(runs, runs)
    columns = [*columns_of(before[0], _common_steps(before[0])), *served_columns(before[1])]
    chosen = choose.where(runs, where, [*before[0], *before[1]], columns)
    if not chosen:
        raise DataError(f"no run is left by --where {' '.join(where)}")
    # What tells those that are left apart may be less.
    variants, served = _grouped(chosen, runs)
    steps = _common_steps(variants)
    columns = columns_of(variants, steps)
    rankings = rankings_of(variants, served)
    evaluated = any(ranking.figure == ACCEPT_LENGTH for ranking in rankings)
    if variants and (order is not None or evaluated):
        variants = choose.sort(variants, order or "accept_length", columns, reverse)
    elif order is not None:
        served = choose.sort(served, order, served_columns(served), reverse)
    return Comparison(variants, columns, steps, list(notes), rankings, served)


def _grouped(runs: Sequence[Run], named_among: Sequence[Run]) -> tuple[list[Variant], list[Variant]]:
    """(drafters, configurations of the served target). A run that made a drafter and measured too is in both."""

    def drafters(these: Sequence[Run]) -> list[Run]:
        return [run for run in these if not run.only_benched]

    def benched(these: Sequence[Run]) -> list[Run]:
        return [run for run in these if run.benched]

    made, measured = drafters(runs), benched(runs)
    return (
        variants_of(made, named_among=drafters(named_among)) if made else [],
        variants_of(measured, BENCH, benched(named_among)) if measured else [],
    )


def _common_steps(variants: Sequence[Variant]) -> int:
    return min((variant.steps for variant in variants if variant.steps), default=0)
