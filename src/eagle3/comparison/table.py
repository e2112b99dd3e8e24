"""The comparison itself: groups of what was measured alike, their rows in order, the best of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3.comparison import choose
from eagle3.comparison.columns import Column
from eagle3.comparison.groups import Group, groups_of
from eagle3.comparison.ranking import Ranking
from eagle3.comparison.runs import Note, Run, collect
from eagle3.comparison.variants import Variant
from eagle3.errors import DataError
from eagle3.units import counted


class NothingToCompareError(DataError):
    """Not one finished run is at or below the paths."""


@dataclass
class Comparison:
    """What all formats are written from."""

    groups: list[Group]
    """Of drafters, then of the served target."""
    notes: list[Note]

    @property
    def drafters(self) -> list[Group]:
        """Groups of drafters; those that were not evaluated are the last."""
        return [group for group in self.groups if not group.of_the_target]

    @property
    def evaluated(self) -> list[Group]:
        """Groups of drafters that were measured: of several, none is compared with another."""
        return [group for group in self.drafters if group.evaluated]

    @property
    def targets(self) -> list[Group]:
        """Groups of configurations of the served target."""
        return [group for group in self.groups if group.of_the_target]

    @property
    def variants(self) -> list[Variant]:
        """Rows of all drafters."""
        return [variant for group in self.drafters for variant in group.variants]

    @property
    def served(self) -> list[Variant]:
        """Rows of all configurations of the served target."""
        return [variant for group in self.targets for variant in group.variants]

    @property
    def rankings(self) -> list[Ranking]:
        """Of each group, by each figure that ranks."""
        return [ranking for group in self.groups for ranking in group.rankings]

    @property
    def all_runs(self) -> list[Run]:
        """Each once, in the order of the rows."""
        runs = [run for group in self.groups for variant in group.variants for run in variant.runs]
        return list({id(run): run for run in runs}.values())

    @property
    def title(self) -> str:
        if self.drafters:
            return f"Comparison of {counted(len(self.variants), 'drafter')}"
        return f"Comparison of {counted(len(self.served), 'configuration')} of the served target"


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
        ConfigError: nothing is at one of the paths; `where` or `order` name what no run has.
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
    groups = groups_of(runs, runs)
    chosen = choose.where(runs, where, [variant for group in groups for variant in group.variants], _columns(groups))
    if not chosen:
        raise DataError(f"no run is left by --where {' '.join(where)}")
    if len(chosen) < len(runs):  # what tells those that are left apart may be less
        groups = groups_of(chosen, runs)
    columns = _columns(groups)
    figures = {column.key for column in columns}
    for group in groups:
        key, own = order, {column.key for column in group.columns}
        if key is None or (key in figures and key not in own):  # a figure of other groups
            key = "accept_length" if "accept_length" in own else None
        if key is not None:
            group.variants = choose.sort(group.variants, key, columns, chosen, reverse)
    return Comparison(groups, list(notes))


def _columns(groups: Sequence[Group]) -> list[Column]:
    """Of all groups; each gives its value of any row."""
    return list({column.key: column for group in groups for column in group.columns}.values())
