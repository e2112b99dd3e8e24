"""What became of a sweep's jobs: the record in each job's folder, the table of all, and the ranking of what was varied.

Reads the sweep's folder alone, so it works on a sweep that runs, was stopped, or was copied here.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eagle3.pipeline.artifacts import read_json
from eagle3.tracking.units import duration

JOB_RECORD, SWEEP_FILE, TABLE_FILE = "job.json", "sweep.json", "sweep.md"
REPEATS = ("seed", "bench.round")
"""Overrides that repeat a measurement: jobs that differ only in these are one choice, and tell its spread."""
FIGURES = {
    "eval/accept_length": "accept length",
    "serve/speedup": "served speed-up",
    "serve/tokens_per_s": "served, tokens/s",
    "bench/decode_1": "serving: decode 1, tokens/s",
    "bench/decode_4": "serving: decode 4, tokens/s",
    "bench/decode_16": "serving: decode 16, tokens/s",
    "bench/prefill": "extraction: prefill, tokens/s",
}
"""Figures of report/summary.json by which choices are ranked; more is better."""
_STAGES = {"eval": "evaluate", "serve": "evaluate", "bench": "bench"}
"""Namespace of a figure -> the stage whose artifact it was measured of."""


@dataclass
class Record:
    """A job of a sweep and its outcome: job.json in its folder."""

    number: int
    overrides: list[str]
    status: str = "not run"
    """not run, running, done, failed or interrupted."""
    seconds: float | None = None
    failure: str | None = None
    log: str | None = None
    choices: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    """Those of FIGURES that the run has."""
    measured: dict[str, str] = field(default_factory=dict)
    """Figure -> the artifact that holds its measurement: jobs may share one."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know: settings that NCCL did not follow."""

    def write(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / JOB_RECORD).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    def end(self, run_dir: Path, status: str, seconds: float, failure: str | None = None) -> None:
        """Notes the outcome."""
        self.status, self.seconds, self.failure = status, round(seconds, 1), failure
        summary = read_json(run_dir / "report" / "summary.json") if status == "done" else {}
        self.figures = {name: float(summary[name]) for name in FIGURES if name in summary}
        made = read_json(run_dir / "provenance.json").get("artifacts") or {}
        stages = {name: _STAGES[name.split("/", 1)[0]] for name in self.figures}
        self.measured = {name: made[stage] for name, stage in stages.items() if stage in made}
        self.notes = read_json(run_dir / "report" / "nccl.json").get("not_followed", [])
        self.write(run_dir)


@dataclass(frozen=True)
class Choice:
    """One combination of what was varied, and a figure of it over its repeats."""

    name: str
    values: list[float]

    @property
    def middle(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float | None:
        """Largest minus smallest; None of a single run."""
        return max(self.values) - min(self.values) if len(self.values) > 1 else None


def read_records(folder: Path) -> list[Record]:
    """Every job of a sweep folder in order, with those that never began."""
    planned = read_json(folder / SWEEP_FILE).get("jobs") or []
    found: dict[int, Record] = {}
    for path in folder.glob(f"*/{JOB_RECORD}"):
        record = Record(**read_json(path))
        found[record.number] = record
    missing = {i: Record(i, overrides) for i, overrides in enumerate(planned) if i not in found}
    return [record for _, record in sorted({**found, **missing}.items())]


def varied_in(folder: Path, record: Record) -> list[str]:
    """The overrides of a job that not all jobs of its sweep have."""
    planned = read_json(folder / SWEEP_FILE).get("jobs") or []
    return varied([record, *(Record(i, overrides) for i, overrides in enumerate(planned))])[0]


def varied(records: list[Record]) -> list[list[str]]:
    """Of each job the overrides that not all jobs have."""
    common = set.intersection(*(set(record.overrides) for record in records)) if len(records) > 1 else set()
    return [[item for item in record.overrides if item not in common] for record in records]


def choices_of(records: list[Record], figure: str) -> list[Choice]:
    """What was varied, with repeats put together; in the order of the jobs.

    Jobs that share a measurement count once, by what they have in common: NCCL profiles are no part of a choice of
    layers' accept length, nor layers of a profile's tokens/s.
    """
    shared: dict[str, list[tuple[list[str], float]]] = {}
    for record, items in zip(records, varied(records), strict=True):
        if figure in record.figures:
            key = record.measured.get(figure, str(record.number))
            shared.setdefault(key, []).append((items, record.figures[figure]))
    groups: dict[str, list[float]] = {}
    for jobs in shared.values():
        first, value = jobs[0]
        common = [item for item in first if all(item in items for items, _ in jobs)]
        name = " ".join(item for item in common if item.split("=")[0] not in REPEATS) or "as configured"
        groups.setdefault(name, []).append(value)
    return [Choice(name, values) for name, values in groups.items()]


def ranked(choices: list[Choice]) -> list[tuple[Choice, str]]:
    """Best first, each with its difference from the best one: a tie where that is within the larger spread of both."""
    order = sorted(choices, key=lambda choice: choice.middle, reverse=True)
    rows: list[tuple[Choice, str]] = []
    for choice in order:
        best = order[0]
        lost = best.middle - choice.middle
        spreads = [spread for spread in (best.spread, choice.spread) if spread is not None]
        if choice is best:
            verdict = "best"
        elif not spreads:
            verdict = f"{-lost / best.middle:.1%}, spread not known"
        else:
            verdict = "tie" if lost <= max(spreads) else f"{-lost / best.middle:.1%}"
        rows.append((choice, verdict))
    return rows


def write_tables(folder: Path, records: list[Record]) -> None:
    """Prints the table of jobs and the rankings, and writes them to sweep.md in the folder."""
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, soft_wrap=True, width=width).print(_tables(folder, records, boxed=True))
    text = Console(width=200, highlight=False, file=(folder / TABLE_FILE).open("w", encoding="utf-8"))
    with text.file:
        text.print(_tables(folder, records, boxed=False))


def _tables(folder: Path, records: list[Record], *, boxed: bool) -> RenderableType:
    parts: list[RenderableType] = [_jobs_table(folder, records, boxed)]
    for figure, title in FIGURES.items():
        rows = ranked(choices_of(records, figure))
        if len(rows) > 1:
            parts += ["", _ranking(title, rows, boxed)]
    notes: dict[str, list[str]] = {}
    for record in records:
        for note in record.notes:
            notes.setdefault(note, []).append(str(record.number))
    parts += [Text(f"job {', '.join(numbers)}: {note}") for note, numbers in notes.items()]
    for record in records:
        if record.failure is not None:
            parts += ["", Text(f"job {record.number} failed: {record.failure}\nlog: {record.log}")]
    return Group(*parts, "", Text(f"sweep: {folder}"))


def _table(title: str, boxed: bool) -> Table:
    from rich.box import MARKDOWN, SIMPLE_HEAD

    return Table(title=title, title_justify="left", box=SIMPLE_HEAD if boxed else MARKDOWN)


def _jobs_table(folder: Path, records: list[Record], boxed: bool) -> Table:
    table = _table(f"{folder.parent.name}: {len(records)} jobs", boxed)
    shown = [name for name in FIGURES if any(name in record.figures for record in records)]
    for head in ("job", "varied", "status", "time", *(FIGURES[name] for name in shown)):
        table.add_column(head, overflow="fold")
    for record, items in zip(records, varied(records), strict=True):
        figures = [f"{record.figures[name]:,.4g}" if name in record.figures else "" for name in shown]
        spent = duration(record.seconds) if record.seconds is not None else ""
        table.add_row(str(record.number), Text(" ".join(items)), record.status, spent, *figures)
    return table


def _ranking(title: str, rows: list[tuple[Choice, str]], boxed: bool) -> Table:
    table = _table(f"by {title}", boxed)
    for head in ("choice", "median", "smallest to largest", "runs", "against the best"):
        table.add_column(head, overflow="fold")
    for choice, verdict in rows:
        span = f"{min(choice.values):,.4g} to {max(choice.values):,.4g}"
        table.add_row(Text(choice.name), f"{choice.middle:,.4g}", span, str(len(choice.values)), verdict)
    return table
