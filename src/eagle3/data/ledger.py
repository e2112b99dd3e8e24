"""What the server's plugin says is written: one JSON line a sequence, in work/ledger-*.jsonl."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BASE_ID = 1 << 62
"""Sample ids of the proof's sequences count from here: they are no part of the dataset."""


@dataclass(frozen=True)
class Committed:
    """All rows of one sequence are in their shard."""

    sample_id: int
    length: int
    crc: list[int]
    """crc32 of the rows in each state."""
    bad: str | None
    """nan or inf, when a row holds such a value."""


class LedgerTail:
    """Reads all ledgers of a work folder as they grow, each from where it last stopped."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self._offsets: dict[Path, int] = {}

    def poll(self) -> Iterator[Committed]:
        """Lines since the last call. A last line without its end is not there yet; one that was torn never will be."""
        for path in sorted(self.work.glob("ledger-*.jsonl")):
            start = self._offsets.get(path, 0)
            if path.stat().st_size == start:
                continue
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[path] = start + whole
            for line in data[:whole].splitlines():
                try:
                    raw = json.loads(line)
                    yield Committed(int(raw["id"]), int(raw["length"]), list(raw["crc"]), raw["bad"])
                except (ValueError, KeyError, TypeError):
                    continue  # damaged by a crash of the machine: the sequence is extracted again
