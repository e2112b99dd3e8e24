"""Rows that were measured alike: a table of their own, with a best of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3.comparison.columns import Column, columns_of, served_columns
from eagle3.comparison.figures import BENCH, EVALUATE
from eagle3.comparison.grouping import variants_of
from eagle3.comparison.measured import NOT_EVALUATED, Measured, names_of, slugs_of
from eagle3.comparison.noise import Spread, Verdict
from eagle3.comparison.ranking import ACCEPT_LENGTH, Place, Ranking, rankings_of
from eagle3.comparison.runs import Run
from eagle3.comparison.variants import Variant

BEHIND = "behind the best"


@dataclass
class Group:
    """Of drafters, or of configurations of the served target."""

    way: Measured
    measured: str
    """How, as far as it tells this group from the others."""
    slug: str
    """The same for the names of files and figures; "" where there is no other."""
    variants: list[Variant]
    columns: list[Column]
    steps: int
    """Drafted tokens that every drafter has."""
    rankings: list[Ranking]
    """By each figure that ranks."""

    @property
    def evaluated(self) -> bool:
        return self.way.kind != NOT_EVALUATED

    @property
    def of_the_target(self) -> bool:
        return self.way.kind == BENCH

    @property
    def by_length(self) -> Ranking | None:
        """The ranking by accept length; None where no drafter was evaluated."""
        return next((ranking for ranking in self.rankings if ranking.figure == ACCEPT_LENGTH), None)

    @property
    def best(self) -> Variant | None:
        """By accept length."""
        return None if self.by_length is None else self.by_length.places[0].variant

    @property
    def led(self) -> bool:
        """Whether there is a best that others are behind."""
        return self.best is not None and len(self.variants) > 1

    def place(self, variant: Variant) -> Place | None:
        """Its place by accept length; None where it was not evaluated."""
        places = [] if self.by_length is None else self.by_length.places
        return next((place for place in places if place.variant is variant), None)

    def verdict(self, variant: Variant) -> Verdict | str:
        """How far the best is ahead of it in accept length, or why that is not known; "" of the best itself."""
        place = self.place(variant)
        return "" if place is None else place.verdict

    @property
    def settings(self) -> list[str]:
        """Headings of what the rows differ in."""
        return list(self.variants[0].setting) or ["run"]

    def headings(self) -> list[str]:
        return [*self.settings, "seeds", *self._with_lead([column.title for column in self.columns], BEHIND)]

    def rows(self) -> list[list[str]]:
        """Cells as people read them; a figure with its spread, where that is known."""
        rows = []
        for variant in self.variants:
            cells = list(variant.setting.values()) or [variant.label]
            place = self.place(variant)
            figures = [_cell(column, variant, variant.spread) for column in self.columns]
            lead = "" if place is None else place.behind
            rows.append([*cells, str(len(variant.distinct)), *self._with_lead(figures, lead)])
        return rows

    def _with_lead(self, figures: list[str], lead: str) -> list[str]:
        """Beside the accept length, which is first, how far it is behind the best."""
        return [figures[0], lead, *figures[1:]] if self.led else figures


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


def groups_of(runs: Sequence[Run], named_among: Sequence[Run]) -> list[Group]:
    """Of drafters, those that were not evaluated last, then of the served target.

    A run that made a drafter and measured its served target too is in one of either.

    Args:
        named_among: all runs, by which a row that is left alone is named.
    """
    drafters = [run for run in runs if not run.only_benched]
    every_drafter = [run for run in named_among if not run.only_benched]
    benched, every_benched = ([run for run in some if run.benched] for some in (runs, named_among))
    return [*_groups(drafters, EVALUATE, every_drafter), *_groups(benched, BENCH, every_benched)]


def _groups(runs: Sequence[Run], stage: str, named_among: Sequence[Run]) -> list[Group]:
    found: dict[object, tuple[Measured, list[Run]]] = {}
    for run in runs:
        way = Measured.of(run, stage)
        found.setdefault(way.key, (way, []))[1].append(run)
    ordered = sorted(found.values(), key=lambda pair: pair[0].kind == NOT_EVALUATED)
    ways = [way for way, _ in ordered]
    several = sum(way.kind != NOT_EVALUATED for way in ways) > 1
    made = []
    for (way, members), name, slug in zip(ordered, names_of(ways), slugs_of(ways), strict=True):
        variants = variants_of(members, stage, named_among)
        steps = min((variant.steps for variant in variants if variant.steps), default=0)
        columns = served_columns(variants) if stage == BENCH else columns_of(variants, steps)
        rankings = rankings_of(variants, name if several else "") if way.kind != NOT_EVALUATED else []
        alone = not several and (way.kind != NOT_EVALUATED or len(ways) == 1)
        made.append(Group(way, name, "" if alone else slug, variants, columns, steps, rankings))
    return made
