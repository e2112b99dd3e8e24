"""What `eagle3 inspect` says of a sweep's folder, and of a comparison's."""

import shlex
from collections import Counter
from pathlib import Path

from eagle3.commands.origin import Facts
from eagle3.commands.standing import is_held
from eagle3.files.json_file import json_or_empty
from eagle3.pipeline.sweep_table import SWEEP_FILE, TABLE_FILE, read_records, varied

PAGE = "comparison.html"


def sweep(path: Path) -> Facts:
    """Its jobs with what became of each, the table, and the command that goes on."""
    records, running = read_records(path), is_held(path)
    counts = Counter(record.status for record in records)
    told = ", ".join(f"{number} {status}" for status, number in counts.items())
    yield "state", f"{told}{' (it is being run)' if running else ''}"
    for record, items in zip(records, varied(records), strict=True):
        failure = f": {record.failure.splitlines()[0]}" if record.failure else ""
        yield f"job {record.number}", f"{record.status}, {' '.join(items) or 'as configured'}{failure}"
    for name, label in ((TABLE_FILE, "table"), (f"comparison/{PAGE}", "comparison")):
        if (path / name).is_file():
            yield label, str(path / name)
    command = str(json_or_empty(path / SWEEP_FILE).get("command", "unknown"))
    yield "command", command
    if counts["done"] < len(records) and not running:
        yield "next", "the same command runs what is missing or failed"
    if counts["done"]:
        first = next(record.number for record in records if record.status == "done")
        yield "next", f"eagle3 compare {shlex.quote(str(path))}"
        yield "", f"eagle3 inspect {shlex.quote(str(path / str(first)))}"


def comparison(path: Path) -> Facts:
    """Its files, and what they are of where that is beside them."""
    parent = path.absolute().parent
    if (parent / SWEEP_FILE).is_file():
        yield "of", f"the sweep {parent}"
        yield "next", f"eagle3 compare {shlex.quote(str(parent))}"
    for file in sorted(path.glob("comparison.*")):
        yield "file", str(file)
