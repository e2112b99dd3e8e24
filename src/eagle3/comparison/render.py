"""A comparison as text for a terminal, as Markdown and as CSV."""

import csv
import io

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3.comparison.columns import dataset_of
from eagle3.comparison.noise import Verdict
from eagle3.comparison.table import ACCEPT_LENGTH, Comparison


def text(comparison: Comparison) -> RenderableType:
    table = Table(box=SIMPLE_HEAD)
    figures = len(comparison.variants[0].setting) or 1
    for index, heading in enumerate(comparison.headings()):
        right = figures <= index <= figures + len(comparison.columns) and heading != "behind the best"
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for variant, row in zip(comparison.variants, comparison.rows(), strict=True):
        table.add_row(*map(Text, row), style="bold" if variant is comparison.best else "")
    left_out = [Text(f"left out: {note}", style="dim") for note in comparison.notes]
    return Group(table, *map(Text, comparison.headline()), *left_out)


def plain_text(comparison: Comparison, width: int = 200) -> str:
    """`text` without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(text(comparison))
    return captured.get()


def markdown(comparison: Comparison) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    headings = comparison.headings()
    lines = ["# Comparison\n", *(f"{sentence}\n" for sentence in comparison.headline())]
    lines += [line(headings), "|" + " --- |" * len(headings)]
    for variant, row in zip(comparison.variants, comparison.rows(), strict=True):
        lines.append(line([f"**{cell}**" if cell and variant is comparison.best else cell for cell in row]))
    lines += ["", "Runs:\n"]
    for variant in comparison.variants:
        lines += [f"- {variant.label}: " + ", ".join(f"`{folder}`" for folder in variant.folders)]
    lines += ["", "Left out:\n", *(f"- {note}" for note in comparison.notes)] if comparison.notes else []
    return "\n".join(lines) + "\n"


def records(comparison: Comparison) -> list[dict[str, str | int | float | None]]:
    """A row for each variant with figures as numbers: for CSV, and for W&B's table."""
    rows = []
    for variant, spread, verdict in zip(comparison.variants, comparison.spreads, comparison.verdicts, strict=True):
        row: dict[str, str | int | float | None] = dict(variant.setting)
        row["seeds"] = len(variant.distinct)
        for column in comparison.columns:
            row[column.key] = column.value(variant)
            if column.key == ACCEPT_LENGTH:
                row["accept_length_spread"] = None if spread is None else spread.accept_length
                row["spread_of"] = None if spread is None else spread.source
        known = isinstance(verdict, Verdict)
        row["behind_best"] = 0.0 if variant is comparison.best else verdict.difference if known else None
        row["behind_best_low"], row["behind_best_high"] = (verdict.low, verdict.high) if known else (None, None)
        row["exceeds_noise"] = str(verdict.exceeds) if known else None
        row["dataset"] = dataset_of(variant)
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
