"""The threads that put rows at their place in the shards, and the ledger of what is complete.

Everything heavy here (waiting for the copy, crc32, pwrite) releases the interpreter's lock, so threads inside the
scheduler's process do not slow the forward pass down.
"""

import json
import os
import queue
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import torch

from . import DumpError
from .batch import Segment
from .placement import Placement, read_header
from .staging import Block, Staging

OPEN_SHARDS = 8
SCALE_BYTES = 4


class Progress:
    """A sequence that is being written; touched by one thread only."""

    def __init__(self, states: int) -> None:
        self.rows = 0
        self.crc = [0] * states
        self.scales = [bytearray() for _ in range(states)]
        """What the checksums go on with after the last row; empty where rows have no scale."""
        self.bad: str | None = None


class Writers:
    """N threads; all segments of a sequence go to the same one, so that its checksum runs on in order."""

    def __init__(self, work: Path, placement: Placement, staging: Staging, threads: int) -> None:
        self.placement = placement
        self.staging = staging
        self.sequences = self.tokens = self.bytes = self.bad = self.repeated = 0
        self.error: str | None = None
        self._lock = threading.Lock()
        path = work / f"ledger-{os.getpid()}-{time.time_ns() // 1_000_000}.jsonl"
        self._ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._queues: list[queue.SimpleQueue[tuple[Block, list[Segment]]]] = []
        for number in range(threads):
            work_queue: queue.SimpleQueue[tuple[Block, list[Segment]]] = queue.SimpleQueue()
            self._queues.append(work_queue)
            writer = _Writer(self, work_queue)
            threading.Thread(target=writer.run, name=f"hs-dump-{number}", daemon=True).start()

    def submit(self, block: Block, segments: list[Segment]) -> None:
        """Gives a filled block to the threads; it is released when the last of them has written its part."""
        parts: dict[int, list[Segment]] = {}
        for segment in segments:
            parts.setdefault(segment.sequence % len(self._queues), []).append(segment)
        block.hand_out(len(parts))
        for number, part in parts.items():
            self._queues[number].put((block, part))

    @property
    def queued(self) -> int:
        return sum(work_queue.qsize() for work_queue in self._queues)

    def fail(self, error: str) -> None:
        """Stops the dump for good. What is in the ledger stays valid."""
        with self._lock:
            self.error = self.error or error

    def count(self, written: int = 0, repeated: int = 0) -> None:
        """Adds to the figures of the status file: bytes, and sequences that were sent again."""
        with self._lock:
            self.bytes += written
            self.repeated += repeated

    def commit(self, sequence: int, progress: Progress) -> None:
        """One line, written at once: the sequence's rows are all in the file by now."""
        length = self.placement.length[sequence]
        line = {
            "id": self.placement.sample_ids[sequence],
            "length": length,
            "crc": [zlib.crc32(scales, crc) for crc, scales in zip(progress.crc, progress.scales, strict=True)],
            "bad": progress.bad,
        }
        data = (json.dumps(line) + "\n").encode()
        with self._lock:
            if self.error is None:  # after a torn line nothing may follow
                _write_all(self._ledger, data)
                self.sequences += 1
                self.tokens += length
                self.bad += progress.bad is not None


class _Writer:
    def __init__(self, shared: Writers, work: queue.SimpleQueue[tuple[Block, list[Segment]]]) -> None:
        self.shared = shared
        self.work = work
        self.open_sequences: dict[int, Progress] = {}
        self.complete: set[int] = set()
        self.files: dict[int, tuple[int, int]] = {}
        """Shard to (descriptor, byte offset of its input_ids), least recently used first."""

    def run(self) -> None:
        while True:
            block, segments = self.work.get()
            try:
                if block.event is not None:
                    block.event.synchronize()
                for segment in segments:
                    if self.shared.error is None:
                        self.write(block, segment)
            except OSError as error:
                self.shared.fail(f"{error.strerror or error} ({error.filename or 'while writing a shard'})")
            except DumpError as error:
                self.shared.fail(str(error))
            except Exception as error:  # a writer that dies silently would hang the server
                self.shared.fail(f"{type(error).__name__}: {error}")
            finally:
                if block.done():
                    self.shared.staging.release(block)

    def write(self, block: Block, segment: Segment) -> None:
        placement = self.shared.placement
        sequence, start, row, count = segment
        if sequence in self.complete:  # sent twice, e.g. after a lost reply: what is committed is not touched
            self.shared.count(repeated=int(start == 0))
            return
        progress = self.open_sequences.get(sequence)
        if progress is None or start == 0:  # from the start again after an aborted request
            progress = self.open_sequences[sequence] = Progress(len(placement.states))
        length = placement.length[sequence]
        sample = placement.sample_ids[sequence]
        if start != progress.rows or start + count > length:
            raise DumpError(
                f"sequence {sample}: got positions [{start}, {start + count}) after {progress.rows} of {length}; "
                "rows are missing or belong to another request. Is the radix cache on?"
            )
        file, ids_offset = self.file(placement.shard[sequence])
        first = placement.row[sequence] + start
        if os.pread(file, 4 * count, ids_offset + 4 * first) != block.id_bytes[4 * row : 4 * (row + count)]:
            raise DumpError(f"sequence {sample}: the tokens that the server forwarded are not those of the shard")
        size, plan = block.row_bytes, placement.shards[placement.shard[sequence]]
        for number, offset in enumerate(plan.state_offsets):
            data = block.bytes[number][row * size : (row + count) * size]
            _pwrite_all(file, data, offset + first * size)
            progress.crc[number] = zlib.crc32(data, progress.crc[number])
        for number, offset in enumerate(plan.scale_offsets):
            data = block.scale_bytes[number][row * SCALE_BYTES : (row + count) * SCALE_BYTES]
            _pwrite_all(file, data, offset + first * SCALE_BYTES)
            progress.scales[number] += data
        progress.bad = progress.bad or _verdict(block.peaks[:, row : row + count])
        progress.rows += count
        written = size * len(plan.state_offsets) + SCALE_BYTES * len(plan.scale_offsets)
        self.shared.count(written=count * written)
        if progress.rows == length:
            self.shared.commit(sequence, progress)
            self.complete.add(sequence)
            del self.open_sequences[sequence]

    def file(self, shard: int) -> tuple[int, int]:
        entry = self.files.pop(shard, None)
        if entry is None:
            entry = self._open(shard)
            if len(self.files) >= OPEN_SHARDS:
                oldest = next(iter(self.files))
                os.close(self.files.pop(oldest)[0])
        self.files[shard] = entry
        return entry

    def _open(self, shard: int) -> tuple[int, int]:
        plan = self.shared.placement.shards[shard]
        try:
            file = os.open(plan.path, os.O_RDWR)
        except FileNotFoundError:
            raise DumpError(f"{plan.path} is missing: the client makes it before it sends a sequence of it") from None
        header, data = read_header(file, str(plan.path))
        states = self.shared.placement.states
        names = [*states, *(f"scale.{state}" for state in states if plan.scale_offsets)]
        offsets = tuple(data + header[name]["data_offsets"][0] if name in header else -1 for name in names)
        if offsets != plan.state_offsets + plan.scale_offsets:
            raise DumpError(f"{plan.path}: the header does not agree with work/placement.json")
        return file, data + header["input_ids"]["data_offsets"][0]


def _verdict(peaks: torch.Tensor) -> str | None:
    if bool(torch.isfinite(peaks).all()):
        return None
    return "nan" if bool(torch.isnan(peaks).any()) else "inf"


def _write_all(file: int, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _pwrite_all(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
