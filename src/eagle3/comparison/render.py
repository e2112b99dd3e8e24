"""A comparison as text for a terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from eagle3.comparison.columns import dataset_of
from eagle3.comparison.noise import Verdict
from eagle3.comparison.outcome import headline
from eagle3.comparison.ranking import Ranking
from eagle3.comparison.table import BEHIND, Comparison
from eagle3.comparison.terminal import Fitting

Record = dict[str, str | int | float | None]


def text(comparison: Comparison) -> RenderableType:
    parts: list[RenderableType] = []
    if comparison.variants:
        headings = comparison.headings()
        settings = len(comparison.settings)
        figures = settings + len(comparison.columns) + (comparison.best is not None)
        right = [settings <= index <= figures and heading != BEHIND for index, heading in enumerate(headings)]
        best = [variant is comparison.best for variant in comparison.variants]
        fewer = settings + (3 if comparison.best is not None else 1)
        parts.append(Fitting(headings, comparison.rows(), right, best, settings, fewer))
    parts += [ranking_text(ranking) for ranking in comparison.of_the_target]
    left_out = [Text(f"left out: {note}", style="dim") for note in comparison.notes]
    return Group(*parts, *map(Text, headline(comparison)), *left_out)


def ranking_text(ranking: Ranking) -> RenderableType:
    """The table of a ranking; a sweep's end shows the same."""
    rows = ranking.rows()
    best = [index == 0 and len(rows) > 1 for index in range(len(rows))]
    title = f"by {ranking.title}" if len(rows) > 1 else ""
    return Fitting(ranking.headings(), rows, [False, True, True, False], best, 1, 4, title=title)


def plain_text(comparison: Comparison, width: int = 200) -> str:
    """`text` without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(text(comparison))
    return captured.get()


def markdown(comparison: Comparison) -> str:
    lines = [f"# {comparison.title}\n", *(f"{sentence}\n" for sentence in headline(comparison))]
    if comparison.variants:
        best = [variant is comparison.best for variant in comparison.variants]
        lines += [*markdown_table(comparison.headings(), comparison.rows(), best), ""]
    for ranking in comparison.of_the_target:
        lines += markdown_ranking(ranking)
    lines += ["Runs:\n"]
    for variant in comparison.variants or comparison.served:
        lines += [f"- {variant.label}: " + ", ".join(f"`{folder}`" for folder in variant.folders)]
    lines += ["", "Left out:\n", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines) + "\n"


def markdown_ranking(ranking: Ranking) -> list[str]:
    """Its lines, with a heading."""
    rows = ranking.rows()
    best = [index == 0 and len(rows) > 1 for index in range(len(rows))]
    return [f"by {ranking.title}\n", *markdown_table(ranking.headings(), rows, best), ""]


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
    rows = [*_drafters(comparison), *_served(comparison)]
    keys = dict.fromkeys(key for row in rows for key in row if key != "runs")
    return [{key: row.get(key) for key in [*keys, "runs"]} for row in rows]


def _drafters(comparison: Comparison) -> list[Record]:
    rows = []
    for variant in comparison.variants:
        row: Record = {**variant.setting, "seeds": len(variant.distinct)}
        for column in comparison.columns:
            row[column.key] = column.value(variant)
            if column.key == "accept_length":
                row["accept_length_spread"] = None if variant.spread is None else variant.spread.accept_length
                row["spread_of"] = None if variant.spread is None else variant.spread.source
        verdict = comparison.verdict(variant)
        known = isinstance(verdict, Verdict)
        row["behind_best"] = 0.0 if variant is comparison.best else verdict.difference if known else None
        row["behind_best_low"], row["behind_best_high"] = (verdict.low, verdict.high) if known else (None, None)
        row["exceeds_noise"] = str(verdict.exceeds) if known else None
        row["dataset"] = dataset_of(variant.runs[0])
        row["runs"] = ";".join(map(str, variant.folders))
        rows.append(row)
    return rows


def _served(comparison: Comparison) -> list[Record]:
    rows = []
    for variant in comparison.served:
        row: Record = dict(variant.setting)
        for ranking in comparison.of_the_target:
            place = next((place for place in ranking.places if place.variant is variant), None)
            if place is None:
                continue
            key = ranking.figure.removeprefix("bench/")
            row["rounds"] = place.count
            row[key], row[f"{key}_spread"] = place.mean, place.spread
            row[f"{key}_behind_best"] = ranking.places[0].mean - place.mean
            row[f"{key}_exceeds_noise"] = str(place.exceeds) if isinstance(place.verdict, Verdict) else None
        row["runs"] = ";".join(map(str, variant.folders))
        rows.append(row)
    return rows


def csv_text(comparison: Comparison) -> str:
    rows = records(comparison)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
