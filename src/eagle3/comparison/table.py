"""The comparison itself: variants in order, their cells, the best one, and whether its lead is more than noise."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eagle3.comparison import choose
from eagle3.comparison.columns import Column, columns_of, dataset_of
from eagle3.comparison.noise import Spread, Verdict
from eagle3.comparison.runs import Note, Run, collect
from eagle3.comparison.variants import Variant, judge, variants_of
from eagle3.errors import DataError
from eagle3.tracking.cost import stage_hours
from eagle3.tracking.results import read_json

ACCEPT_LENGTH = "accept_length"
_HOW = {"simulated": "simulated", "chain": "of real drafts, without a server", "served": "served"}


@dataclass
class Comparison:
    """What all formats are written from."""

    variants: list[Variant]
    columns: list[Column]
    steps: int
    """Drafted tokens at which accept lengths are compared: as many as every variant has."""
    notes: list[Note]
    best: Variant | None
    """By accept length; None where nothing was evaluated."""
    verdicts: list[Verdict | str]
    """Of each variant: how far the best is ahead of it, or why that is not known; "" of the best itself."""
    spreads: list[Spread | None] = field(default_factory=list)

    def headings(self) -> list[str]:
        settings = list(self.variants[0].setting)
        titles = self._with_lead([column.title for column in self.columns], "behind the best")
        return [*(settings or ["run"]), "seeds", *titles, *["dataset"] * self._several_datasets]

    def rows(self) -> list[list[str]]:
        """Cells as people read them; a figure with its spread, where that is known."""
        rows = []
        for variant, spread, verdict in zip(self.variants, self.spreads, self.verdicts, strict=True):
            cells = list(variant.setting.values()) or [variant.label]
            cells.append(str(len(variant.distinct)))
            if variant is self.best:
                lead = "best"
            elif isinstance(verdict, Verdict):
                lead = str(verdict) if verdict.exceeds else f"tie: {verdict}"
            else:
                lead = verdict
            cells += self._with_lead([self._cell(column, variant, spread) for column in self.columns], lead)
            rows.append([*cells, *[dataset_of(variant)] * self._several_datasets])
        return rows

    def _with_lead(self, figures: list[str], lead: str) -> list[str]:
        """Beside the accept length, which is first, how far it is behind the best: where there is a best."""
        return figures if self.best is None else [figures[0], lead, *figures[1:]]

    @property
    def _several_datasets(self) -> bool:
        return len({dataset_of(variant) for variant in self.variants}) > 1

    def _cell(self, column: Column, variant: Variant, spread: Spread | None) -> str:
        value = column.value(variant)
        if value is None:
            return ""
        text = column.show(value)
        if spread is None:
            return text
        if column.key == ACCEPT_LENGTH:
            return f"{text} ± {spread.accept_length:.3f}"
        if column.key.startswith("acceptance_"):
            return f"{text} ± {100 * spread.by_step[int(column.key.removeprefix('acceptance_')) - 1]:.1f}"
        return text

    def headline(self) -> list[str]:
        """The outcome in sentences: the best, whether that is more than noise, what the spread is, what it cost."""
        lines = []
        if self.best is None:
            lines.append("Nothing here was evaluated, so there is no best drafter.")
        else:
            length, kind = self.best.accept_length(self.steps), self.best.runs[0].kind
            lines.append(
                f"Best: {self.best.label}, accept length {length:.3f} ({_HOW.get(kind, kind)}, {_drafts(self.steps)})."
            )
            lines += self._lead()
        sources = list(dict.fromkeys(spread.source for spread in self.spreads if spread is not None))
        if sources:
            lines.append(
                f"± is one standard deviation: {', '.join(sources)}. "
                + _explained(any("seeds" in s for s in sources), any("bootstrap" in s for s in sources))
            )
        longest = max(variant.steps for variant in self.variants)
        if longest > self.steps:
            lines.append(f"Runs draft up to {longest} tokens; all are compared at {self.steps}.")
        if not self._several_datasets:
            lines.append(f"Dataset: {dataset_of(self.variants[0])}.")
        return [*lines, self._cost()]

    def _lead(self) -> list[str]:
        """Against the runner-up, and how many cannot be told from the best."""
        others = [(v, verdict) for v, verdict in zip(self.variants, self.verdicts, strict=True) if v is not self.best]
        judged = [(v, verdict) for v, verdict in others if isinstance(verdict, Verdict)]
        if not others:
            return []
        if not judged:
            return [f"Whether that exceeds the noise is not known: {others[0][1]}."]
        runner_up, verdict = min(judged, key=lambda pair: pair[1].difference)
        more = "more than the noise" if verdict.exceeds else "no more than the noise"
        lines = [f"Ahead of the next, {runner_up.label}, by {verdict}: {more} ({verdict.source})."]
        ties = sum(not verdict.exceeds for _, verdict in judged)
        if ties > 1:
            lines.append(f"{ties} of {len(judged)} others can't be told from it.")
        unknown = len(others) - len(judged)
        if unknown:
            lines.append(f"{unknown} can't be compared with it; the table says why.")
        return lines

    def _cost(self) -> str:
        """Of all runs together; an artifact that several share counts once."""
        hours: dict[str, tuple[float, float]] = {}
        for run in (run for variant in self.variants for run in variant.runs):
            folders = read_json(run.folder / "provenance.json").get("artifacts") or {}
            for stage, spent in stage_hours(run.summary, run.config).items():
                hours[str(folders.get(stage, (run.folder, stage)))] = spent
        gpu, cpu = (sum(spent[i] for spent in hours.values()) for i in (0, 1))
        count = sum(len(variant.runs) for variant in self.variants)
        text = [f"{gpu:.3g} GPU-hours"] * (gpu > 0) + [f"{cpu:.3g} hours on a CPU"] * (cpu > 0)
        spent = " and ".join(text) or "no time that is known"
        return f"{count} runs took {spent}; what they share counts once." if count > 1 else f"The run took {spent}."


def _drafts(steps: int) -> str:
    return "1 drafted token" if steps == 1 else f"{steps} drafted tokens"


def _explained(seeds: bool, bootstrap: bool) -> str:
    parts = []
    if seeds:
        parts.append("Seeds hold the noise of training on the same held-out conversations.")
    if bootstrap:
        parts.append("A bootstrap holds the noise of the measurement alone: another seed may differ by more.")
    return " ".join(parts)


def compare(
    paths: Sequence[Path], where: Sequence[str] = (), order: str | None = None, reverse: bool = False
) -> Comparison:
    """Compares all runs at or below the paths.

    Args:
        where: conditions such as `loss.ttt_steps=3`; all must hold.
        order: key of a column, or of the configuration; by default the accept length.

    Raises:
        DataError: not one finished run is there; the message says of each path why.
        ConfigError: `where` or `order` name what no run has.
    """
    runs, notes = collect(paths)
    if not runs:
        raise DataError("nothing to compare:\n" + "\n".join(f"  {note}" for note in notes))
    return compare_runs(runs, notes, where, order, reverse)


def compare_runs(
    runs: Sequence[Run],
    notes: Sequence[Note] = (),
    where: Sequence[str] = (),
    order: str | None = None,
    reverse: bool = False,
) -> Comparison:
    """`compare` of runs that have been read."""
    variants = variants_of(runs)
    every = columns_of(variants, _common_steps(variants))
    chosen = choose.where(variants, where, every)
    if not chosen:
        raise DataError(f"no run is left by --where {' '.join(where)}")
    # What tells those that are left apart may be less.
    variants = variants_of([run for variant in chosen for run in variant.runs])
    steps = _common_steps(variants)
    columns = columns_of(variants, steps)
    evaluated = [variant for variant in variants if variant.steps]
    best = max(evaluated, key=lambda v: v.accept_length(steps) or 0.0) if evaluated else None
    if order is not None or best is not None:
        variants = choose.sort(variants, order or ACCEPT_LENGTH, columns, reverse)
    return Comparison(
        variants=variants,
        columns=columns,
        steps=steps,
        notes=list(notes),
        best=best,
        verdicts=["" if v is best or best is None else judge(best, v, steps) for v in variants],
        spreads=[variant.spread(steps) for variant in variants],
    )


def _common_steps(variants: Sequence[Variant]) -> int:
    return min((variant.steps for variant in variants if variant.steps), default=0)
