"""A writer's process: puts rows at their place in the shards, and notes in a ledger what is complete.

Processes rather than threads: a scheduler that waits for work spins in Python, and each of a thread's system calls
would wait for the interpreter's lock, some milliseconds a time. This one loads neither torch nor SGLang.

It is told over standard input, one JSON line a block, and answers each on standard output. When its input ends it does
what it was told until then, so rows that left the model are not lost when the server is killed.
"""

import json
import mmap
import os
import signal
import sys
import time
from contextlib import suppress
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from . import DumpError
from .batch import Segment
from .blocks import WIDE, Blocks
from .placement import ITEM_BYTES, SCALED, Placement, read_header, read_placement

try:  # of ISA-L: four times as fast and more; it comes with eagle3
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

OPEN_SHARDS = 16
PART_BYTES = 256 * 1024
"""Written and summed at a time: what one has read, the other finds in the core's cache."""


class Progress:
    """A sequence that is being written."""

    def __init__(self, states: int) -> None:
        self.rows = 0
        self.crc = [0] * states
        self.scales = [bytearray() for _ in range(states)]
        """What the checksums go on with after the last row; empty where rows have no scale."""
        self.bad: str | None = None


class Writer:
    """Writes all segments of its sequences, so that their checksums run on in order."""

    def __init__(self, work: Path, placement: Placement, blocks: Blocks, memory: memoryview) -> None:
        self.placement, self.blocks, self.memory = placement, blocks, memory
        self.open_sequences: dict[int, Progress] = {}
        self.complete: set[int] = set()
        self.files: dict[int, tuple[int, int]] = {}
        """Shard to (descriptor, byte offset of its input_ids), least recently used first."""
        path = work / f"ledger-{os.getpid()}-{time.time_ns() // 1_000_000}.jsonl"
        self._ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.failed = False
        self._report: dict[str, Any] = {}

    def take(self, block: int, segments: list[list[int]]) -> dict[str, Any]:
        """Writes one block's segments; tells what was done. After an error nothing more is."""
        self._report = {"block": block, "bytes": 0, "sequences": 0, "tokens": 0, "bad": 0, "repeated": 0}
        try:
            for segment in segments if not self.failed else []:
                self._write(block * self.blocks.stride, Segment(*segment))
        except Exception as error:
            self.failed = True
            self._report["error"] = _told(error)
        return self._report

    def _write(self, base: int, segment: Segment) -> None:
        placement, blocks = self.placement, self.blocks
        sequence, start, row, count = segment
        if sequence in self.complete:  # sent twice, e.g. after a lost reply: what is committed is not touched
            self._report["repeated"] += int(start == 0)
            return
        progress = self.open_sequences.get(sequence)
        if progress is None or start == 0:  # from the start again after an aborted request
            progress = self.open_sequences[sequence] = Progress(len(placement.states))
        length, sample = placement.length[sequence], placement.sample_ids[sequence]
        if start != progress.rows or start + count > length:
            raise DumpError(
                f"sequence {sample}: got positions [{start}, {start + count}) after {progress.rows} of {length}; "
                "rows are missing or belong to another request. Is the radix cache on?"
            )
        file, ids_offset = self._file(placement.shard[sequence])
        first = placement.row[sequence] + start
        if os.pread(file, WIDE * count, ids_offset + WIDE * first) != self._wide(base + blocks.ids, row, count):
            raise DumpError(f"sequence {sample}: the tokens that the server forwarded are not those of the shard")
        plan = placement.shards[placement.shard[sequence]]
        size = placement.hidden_size * ITEM_BYTES[plan.dtype]
        state_bytes = blocks.rows(plan.dtype) * size
        for number, offset in enumerate(plan.state_offsets):
            begin, to = base + number * state_bytes + row * size, offset + first * size
            for at in range(0, count * size, PART_BYTES):
                data = self.memory[begin + at : begin + min(at + PART_BYTES, count * size)]
                progress.crc[number] = crc32(data, progress.crc[number])
                _pwrite_all(file, data, to + at)
        for number, offset in enumerate(plan.scale_offsets):
            data = self._wide(base + blocks.scales, number * blocks.most_rows + row, count)
            _pwrite_all(file, data, offset + first * WIDE)
            progress.scales[number] += data
        progress.bad = progress.bad or self._verdict(base, row, count)
        progress.rows += count
        written = size * len(plan.state_offsets) + WIDE * len(plan.scale_offsets)
        self._report["bytes"] += count * written
        if progress.rows == length:
            self._commit(sequence, progress)

    def _wide(self, offset: int, row: int, count: int) -> memoryview:
        return self.memory[offset + WIDE * row : offset + WIDE * (row + count)]

    def _verdict(self, base: int, row: int, count: int) -> str | None:
        for number in range(self.blocks.states):
            peaks = self._wide(base + self.blocks.peaks, number * self.blocks.most_rows + row, count).cast("f")
            if not all(map(isfinite, peaks)):
                return "nan" if any(map(isnan, peaks)) else "inf"
        return None

    def _commit(self, sequence: int, progress: Progress) -> None:
        """One line, written at once: the sequence's rows are all in the file by now."""
        length = self.placement.length[sequence]
        line = {
            "id": self.placement.sample_ids[sequence],
            "length": length,
            "crc": [crc32(scales, crc) for crc, scales in zip(progress.crc, progress.scales, strict=True)],
            "bad": progress.bad,
        }
        write_all(self._ledger, (json.dumps(line) + "\n").encode())
        self._report["sequences"] += 1
        self._report["tokens"] += length
        self._report["bad"] += progress.bad is not None
        self.complete.add(sequence)
        del self.open_sequences[sequence]

    def _file(self, shard: int) -> tuple[int, int]:
        entry = self.files.pop(shard, None)
        if entry is None:
            entry = self._open(shard)
            if len(self.files) >= OPEN_SHARDS:
                oldest = next(iter(self.files))
                os.close(self.files.pop(oldest)[0])
        self.files[shard] = entry
        return entry

    def _open(self, shard: int) -> tuple[int, int]:
        plan = self.placement.shards[shard]
        try:
            file = os.open(plan.path, os.O_RDWR)
        except FileNotFoundError:
            raise DumpError(f"{plan.path} is missing: the client makes it before it sends a sequence of it") from None
        header, data = read_header(file, str(plan.path))
        states = self.placement.states
        names = [*states, *(f"scale.{state}" for state in states if plan.dtype == SCALED)]
        offsets = tuple(data + header[name]["data_offsets"][0] if name in header else -1 for name in names)
        if offsets != plan.state_offsets + plan.scale_offsets:
            raise DumpError(f"{plan.path}: the header does not agree with work/placement.json")
        return file, data + header["input_ids"]["data_offsets"][0]


def _told(error: Exception) -> str:
    if isinstance(error, DumpError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.strerror or error} ({error.filename or 'while writing a shard'})"
    return f"{type(error).__name__}: {error}"


def write_all(file: int, data: bytes) -> None:
    """All of it: a pipe or a file may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _pwrite_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def main(work: str, descriptor: str, blocks: str) -> None:
    """`blocks` is a `Blocks` as JSON, `descriptor` its memory's, inherited."""
    # Whoever stops the server stops its main process; here the end of the input is the sign.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    layout = Blocks(**json.loads(blocks))
    memory = memoryview(mmap.mmap(int(descriptor), layout.nbytes, access=mmap.ACCESS_READ))
    writer = Writer(Path(work), read_placement(Path(work)), layout, memory)
    for line in sys.stdin.buffer:
        report = writer.take(*json.loads(line))
        with suppress(BrokenPipeError):  # the server is gone; what it had handed over is still written
            write_all(1, (json.dumps(report) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
