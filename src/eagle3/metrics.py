"""How a stage tells what it is doing: rows of figures in `metrics.jsonl`, read by whoever watches.

A stage writes, wherever it runs (in this process, in a trainer's child process, on rank 0 of many); the parent
tails the file and feeds the progress bar and W&B from it. So there is one writer of W&B, and a figure that was
shown is also on disk.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol


class Reporter(Protocol):
    """What a stage is given to report with."""

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        """One row of history, e.g. {"train/loss": 1.2}; names start with prepare/, extract/, train/, val/ or eval/.

        A value may also be a table: a list of dicts with the same keys, for W&B and the report.
        """
        ...

    def progress(self, done: float, total: float, **fields: Any) -> None:
        """How far the stage is, in `fields["unit"]` (tokens, sequences, steps); other fields are shown as they are."""
        ...

    def note(self, text: str) -> None:
        """One line for the person who watches: 'server ready in 23 s'."""
        ...


class JsonlReporter:
    """Appends every report to a file of JSON lines; a row is complete or it is not there (readers skip a torn tail)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")
        if path.read_bytes()[-1:] not in (b"", b"\n"):
            self._file.write("\n")  # after a line torn by kill -9, so that the next one is whole

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, default=float) + "\n")

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self._write({"time": time.time(), "step": step, "values": values})

    def progress(self, done: float, total: float, **fields: Any) -> None:
        self._write({"time": time.time(), "progress": {"done": done, "total": total, **fields}})

    def note(self, text: str) -> None:
        self._write({"time": time.time(), "note": text})

    def close(self) -> None:
        self._file.close()


class Tail:
    """Reads a growing `metrics.jsonl` from where it last stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def rows(self) -> Iterator[dict[str, Any]]:
        """The complete rows since the last call; nothing while the file does not exist."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                try:
                    yield json.loads(line)
                except ValueError:  # a line torn by kill -9, and ended by the next writer
                    continue


def replay(row: dict[str, Any], reporter: Reporter) -> None:
    """Passes one row of a tailed file on to another reporter."""
    if "values" in row:
        reporter.log(row["values"], row.get("step"))
    elif "progress" in row:
        fields = dict(row["progress"])
        reporter.progress(fields.pop("done"), fields.pop("total"), **fields)
    elif "note" in row:
        reporter.note(row["note"])
