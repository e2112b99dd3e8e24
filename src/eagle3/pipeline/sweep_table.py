"""What became of a sweep's jobs: the record in each job's folder, and the table of all.

Reads the sweep's folder alone, so it works on a sweep that runs, was stopped, or was copied here. The
rankings below the table are the comparison's.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from rich.console import Console

from eagle3.comparison.figures import figures_in, show
from eagle3.comparison.ranking import Ranking
from eagle3.comparison.render import markdown_ranking, markdown_table, ranking_text
from eagle3.comparison.terminal import Fitting
from eagle3.errors import DataError, Eagle3Error
from eagle3.files.json_file import read_json, write_json
from eagle3.files.whole import whole_file
from eagle3.server.nccl_log import UNUSED, unused
from eagle3.units import counted, duration, numbers

JOB_RECORD, SWEEP_FILE, TABLE_FILE = "job.json", "sweep.json", "sweep.md"


@dataclass
class Record:
    """A job of a sweep and its outcome: job.json in its folder."""

    number: int
    overrides: list[str]
    status: str = "not run"
    """not run, running, done, failed, interrupted or damaged."""
    seconds: float | None = None
    failure: str | None = None
    log: str | None = None
    choices: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    """Those by which runs are ranked, as report/summary.json has them."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the figures should know: settings that NCCL did not follow, or that it did nothing."""

    def write(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / JOB_RECORD, asdict(self))

    def end(self, run_dir: Path, status: str, seconds: float | None, failure: str | None = None) -> None:
        """Notes the outcome."""
        self.status, self.failure = status, failure
        self.seconds = None if seconds is None else round(seconds, 1)
        summary = read_json(run_dir / "report" / "summary.json") if status == "done" else {}
        self.figures = {name: float(summary[name]) for name in figures_in(summary)}
        nccl = read_json(run_dir / "report" / "nccl.json")
        self.notes = [*nccl.get("not_followed", []), *[f"{UNUSED}: its profile changed nothing"] * unused(nccl)]
        self.write(run_dir)


DAMAGED = "damaged"
"""The status of a job whose record can't be read."""
_FIELDS = {one.name for one in fields(Record)}
"""Others are of older versions."""
_NAMED = 4
"""Columns of the table of jobs before its figures."""


def read_records(folder: Path) -> list[Record]:
    """Every job of a sweep folder in order, with those that never began."""
    planned = read_json(folder / SWEEP_FILE).get("jobs") or []
    found: dict[int, Record] = {}
    for path in folder.glob(f"*/{JOB_RECORD}"):
        record = _read_record(path, planned)
        if record is not None:
            found[record.number] = record
    missing = {i: Record(i, overrides) for i, overrides in enumerate(planned) if i not in found}
    return [record for _, record in sorted({**found, **missing}.items())]


def _read_record(path: Path, planned: list[list[str]]) -> Record | None:
    """A damaged one says so, by its folder's name: what is known of the other jobs is still to be told."""
    try:
        return Record(**{key: value for key, value in read_json(path).items() if key in _FIELDS})
    except (Eagle3Error, AttributeError, TypeError):
        if not path.parent.name.isdigit():
            return None
        number = int(path.parent.name)
        overrides = planned[number] if number < len(planned) else []
        failure = f"{path} can't be read; the same command writes it again"
        return Record(number, overrides, DAMAGED, failure=failure)


def varied_in(folder: Path, record: Record) -> list[str]:
    """The overrides of a job that not all jobs of its sweep have."""
    planned = read_json(folder / SWEEP_FILE).get("jobs") or []
    return varied([record, *(Record(i, overrides) for i, overrides in enumerate(planned))])[0]


def varied(records: list[Record]) -> list[list[str]]:
    """Of each job the overrides that not all jobs have."""
    if not records:
        return []
    common = set.intersection(*(set(record.overrides) for record in records))
    return [[item for item in record.overrides if item not in common] for record in records]


def write_tables(folder: Path, records: list[Record], rankings: Sequence[Ranking]) -> None:
    """Prints the table of jobs and the rankings of what was varied, and writes them to sweep.md in the folder.

    Where the disk refuses the file, that is said after them.

    Args:
        rankings: of the comparison of the jobs that are done; those of a single configuration are left out.
    """
    several = [ranking for ranking in rankings if len(ranking.places) > 1]
    headings, rows = _jobs(records)
    further = _further(folder, records)
    right = [False] * _NAMED + [True] * (len(headings) - _NAMED)
    title = f"{folder.parent.name}: {counted(len(records), 'job')}"
    plain = [False] * len(rows)
    labels = [f"job {number}: {items}" for number, items, *_ in rows]
    jobs = Fitting(headings, rows, right, plain, labels, 2, _NAMED, title=title, rest=f"{TABLE_FILE} has all")
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, width=width).print(jobs, *map(ranking_text, several))
    print("\n".join(further))
    lines = [f"{title}\n", *markdown_table(headings, rows, plain), ""]
    lines += [line for ranking in several for line in markdown_ranking(ranking)]
    try:
        with whole_file(folder / TABLE_FILE) as file:
            file.write_text("\n".join([*lines, *further]) + "\n", encoding="utf-8")
    except DataError as error:
        print(f"warning: the table is not kept: {error}", file=sys.stderr)


def _jobs(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each job."""
    shown = figures_in(name for record in records for name in record.figures)
    rows = []
    for record, items in zip(records, varied(records), strict=True):
        figures = [show(name, record.figures[name]) if name in record.figures else "" for name in shown]
        spent = duration(record.seconds) if record.seconds is not None else ""
        rows.append([str(record.number), " ".join(items), record.status, spent, *figures])
    return ["job", "varied", "status", "time", *shown.values()], rows


def _further(folder: Path, records: list[Record]) -> list[str]:
    """Lines below the tables: what NCCL did not follow, what failed and why, where all of it is."""
    notes: dict[str, list[int]] = {}
    for record in records:
        for note in record.notes:
            notes.setdefault(note, []).append(record.number)
    lines = [f"job {numbers(which)}: {note}" for note, which in notes.items()]
    failed: dict[str, list[Record]] = {}
    for record in records:
        if record.failure is not None:
            failed.setdefault(_without_log(record.failure), []).append(record)
    for alike in failed.values():
        which = numbers(record.number for record in alike)
        lines += ["", f"job {which} {alike[0].status}: {alike[0].failure}"]
        lines += [f"log: {record.log}" for record in alike if record.log is not None]
    return [*lines, "", f"sweep: {folder}"]


def _without_log(failure: str) -> str:
    """What is the same where several jobs fail alike: each names a log of its own."""
    return "\n".join(line for line in failure.splitlines() if not line.startswith("(log: "))
