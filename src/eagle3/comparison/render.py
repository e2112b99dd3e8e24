"""A comparison as text for a terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.console import Group as Parts
from rich.text import Text

from eagle3.comparison.groups import BEHIND, Group
from eagle3.comparison.noise import Verdict
from eagle3.comparison.outcome import headline
from eagle3.comparison.ranking import Ranking
from eagle3.comparison.runs import dataset_of
from eagle3.comparison.table import Comparison
from eagle3.comparison.terminal import Fitting
from eagle3.comparison.variants import Variant

Record = dict[str, str | int | float | None]


def text(comparison: Comparison) -> RenderableType:
    titled = len(comparison.drafters) > 1
    parts = [_group_text(group, titled) for group in comparison.drafters]
    parts += [ranking_text(ranking) for group in comparison.targets for ranking in group.rankings]
    left_out = [Text(f"left out: {note}", style="dim") for note in comparison.notes]
    return Parts(*parts, *map(Text, headline(comparison)), *left_out)


def _group_text(group: Group, titled: bool) -> RenderableType:
    headings = group.headings()
    settings = len(group.settings)
    figures = settings + len(group.columns) + group.led
    right = [settings <= index <= figures and heading != BEHIND for index, heading in enumerate(headings)]
    labels = [variant.label for variant in group.variants]
    fewer = settings + (3 if group.led else 2 if group.best is not None else 1)
    title = group.measured if titled else ""
    return Fitting(headings, group.rows(), right, best_rows(group), labels, settings, fewer, title=title)


def best_rows(group: Group) -> list[bool]:
    """Which row stands out: the best of several."""
    return [variant is group.best and group.led for variant in group.variants]


def ranking_text(ranking: Ranking) -> RenderableType:
    """The table of a ranking; a sweep's end shows the same."""
    headings = ranking.headings()
    right = [False, True, True, False][: len(headings)]
    labels = [place.variant.label for place in ranking.places]
    title = f"by {ranking.name}" if ranking.led or ranking.measured else ""
    return Fitting(headings, ranking.rows(), right, ranking.best_rows(), labels, 1, len(headings), title=title)


def plain_text(comparison: Comparison, width: int = 200) -> str:
    """`text` without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(text(comparison))
    return captured.get()


def markdown(comparison: Comparison) -> str:
    lines = [f"# {comparison.title}\n", *(f"{sentence}\n" for sentence in headline(comparison))]
    for group in comparison.drafters:
        lines += [f"{group.measured}\n"] * (len(comparison.drafters) > 1)
        lines += [*markdown_table(group.headings(), group.rows(), best_rows(group)), ""]
    lines += [line for group in comparison.targets for r in group.rankings for line in markdown_ranking(r)]
    lines += ["Runs:\n"]
    for label, folders in runs_of(comparison):
        lines += [f"- {label}: " + ", ".join(f"`{folder}`" for folder in folders)]
    lines += ["", "Left out:\n", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines) + "\n"


def runs_of(comparison: Comparison) -> list[tuple[str, list[Path]]]:
    """Of each row its label, with how it was measured where that differs, and its folders."""
    groups = comparison.drafters or comparison.targets
    return [
        (f"{variant.label} ({group.measured})" if len(groups) > 1 else variant.label, variant.folders)
        for group in groups
        for variant in group.variants
    ]


def markdown_ranking(ranking: Ranking) -> list[str]:
    """Its lines, with a heading."""
    return [f"by {ranking.name}\n", *markdown_table(ranking.headings(), ranking.rows(), ranking.best_rows()), ""]


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], best: Sequence[bool]) -> list[str]:
    """Its lines; the cells of the best rows are bold."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    lines = [line(headings), "|" + " --- |" * len(headings)]
    for row, bold in zip(rows, best, strict=True):
        lines.append(line([f"**{cell}**" if cell and bold else cell for cell in row]))
    return lines


def records(comparison: Comparison) -> list[Record]:
    """A row for each drafter, then one for each configuration of the served target; all with the same keys.

    Figures are numbers: for CSV, and for W&B's table.
    """
    rows = [row for group in comparison.groups for row in (_served if group.of_the_target else _drafters)(group)]
    keys = dict.fromkeys(key for row in rows for key in row if key != "runs")
    return [{key: row.get(key) for key in [*keys, "runs"]} for row in rows]


def _drafters(group: Group) -> list[Record]:
    rows = []
    for variant in group.variants:
        row: Record = {**_name(variant), "measured": group.measured, "seeds": len(variant.distinct)}
        for column in group.columns:
            row[column.key] = column.value(variant)
            if column.key == "accept_length":
                row["accept_length_spread"] = None if variant.spread is None else variant.spread.accept_length
                row["spread_of"] = None if variant.spread is None else variant.spread.source
        verdict = group.verdict(variant)
        known = isinstance(verdict, Verdict)
        row["behind_best"] = 0.0 if variant is group.best else verdict.difference if known else None
        row["behind_best_low"], row["behind_best_high"] = (verdict.low, verdict.high) if known else (None, None)
        row["exceeds_noise"] = str(verdict.exceeds) if known else None
        row["dataset"] = dataset_of(variant.runs[0])
        row["runs"] = ";".join(map(str, variant.folders))
        rows.append(row)
    return rows


def _served(group: Group) -> list[Record]:
    rows = []
    for variant in group.variants:
        row: Record = {**_name(variant), "measured": group.measured}
        for ranking in group.rankings:
            place = next((place for place in ranking.places if place.variant is variant), None)
            if place is None:
                continue
            key = ranking.figure.removeprefix("bench/")
            row["rounds"] = place.count
            row[key], row[f"{key}_spread"] = place.mean, place.spread
            row[f"{key}_behind_best"] = place.lost
            row[f"{key}_exceeds_noise"] = str(place.exceeds) if isinstance(place.verdict, Verdict) else None
        row["runs"] = ";".join(map(str, variant.folders))
        rows.append(row)
    return rows


def _name(variant: Variant) -> dict[str, str]:
    return variant.setting or {"run": variant.label}


def csv_text(comparison: Comparison) -> str:
    rows = records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
