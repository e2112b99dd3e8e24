"""The writers' processes as the model's process sees them: blocks go out, figures come back.

Two threads, each of which wakes once or twice a block: one waits for the copy off the device and hands the block out,
one hears of what was written.
"""

import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .batch import Segment
from .placement import Placement
from .staging import Block, Staging
from .writing import write_all

FIGURES = ("bytes", "sequences", "tokens", "bad", "repeated")


class Writers:
    """N processes; all segments of a sequence go to the same one, so that its checksum runs on in order."""

    def __init__(self, work: Path, placement: Placement, staging: Staging, count: int) -> None:
        self.placement = placement
        self.staging = staging
        self.figures = dict.fromkeys(FIGURES, 0)
        """Bytes, sequences and tokens written; sequences with rows that are not finite; sequences sent again."""
        self.error: str | None = None
        self._processes = [self._start(work) for _ in range(count)]
        self._with: list[dict[int, Block]] = [{} for _ in range(count)]
        """What each process has been handed and has not answered for, by number."""
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[tuple[Block, dict[int, list[Segment]]]] = queue.SimpleQueue()
        for name, run in (("out", self._hand_out), ("back", self._listen)):
            threading.Thread(target=run, name=f"hs-dump-{name}", daemon=True).start()

    def _start(self, work: Path) -> subprocess.Popen[bytes]:
        # -S: nothing but the standard library, so that it is there in some hundredths of a second.
        layout, memory = json.dumps(asdict(self.staging.layout)), self.staging.descriptor
        paths = [Path(__file__).resolve().parents[1]]
        if (sums := find_spec("isal")) is not None and sums.origin is not None:
            paths.append(Path(sums.origin).parents[1])
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "eagle3_hs_dump.writing", str(work), str(memory), layout],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[memory],
            bufsize=0,
        )

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def queued(self) -> int:
        """Blocks handed out and not answered for, counted once for each process that has a part in it."""
        return sum(map(len, self._with))

    def submit(self, block: Block, segments: list[Segment]) -> None:
        """Gives a filled block to the processes; it is released when the last of them has written its part.

        Neighbours, about a block of them, go to the same process: each message waits for the interpreter's lock.
        """
        parts: dict[int, list[Segment]] = {}
        rows, shard, row = self.staging.layout.most_rows, self.placement.shard, self.placement.row
        for segment in segments:
            number = (shard[segment.sequence] + row[segment.sequence] // rows) % len(self._processes)
            parts.setdefault(number, []).append(segment)
        block.hand_out(len(parts))
        self._ready.put((block, parts))

    def fail(self, error: str) -> None:
        """Stops the dump for good. What is in a ledger stays valid."""
        with self._lock:
            self.error = self.error or error

    def _hand_out(self) -> None:
        while True:
            block, parts = self._ready.get()
            if block.event is not None:
                block.event.synchronize()
            for number, part in parts.items():
                with self._lock:
                    self._with[number][block.number] = block
                try:
                    if self.error is not None:
                        raise BrokenPipeError
                    pipe = self._processes[number].stdin
                    assert pipe is not None
                    write_all(pipe.fileno(), (json.dumps([block.number, part]) + "\n").encode())
                except OSError:  # `_listen` tells of a process that has ended
                    self._answered(number, block.number)

    def _answered(self, number: int, block_number: int) -> None:
        with self._lock:
            block = self._with[number].pop(block_number, None)
        if block is not None and block.done():
            self.staging.release(block)

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        torn = [b""] * len(self._processes)
        for number, process in enumerate(self._processes):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    self._ended(key.data)
                    continue
                *lines, torn[key.data] = (torn[key.data] + data).split(b"\n")
                for line in lines:
                    self._hear(key.data, json.loads(line))

    def _hear(self, number: int, report: dict[str, Any]) -> None:
        for name in FIGURES:
            self.figures[name] += report[name]
        if "error" in report:
            self.fail(report["error"])
        self._answered(number, report["block"])

    def _ended(self, number: int) -> None:
        """A process that ends before we do was killed; nothing may wait for it."""
        process = self._processes[number]
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        self.fail(f"a writer's process ({process.pid}) ended with code {process.returncode}: was it killed?")
        for block_number in list(self._with[number]):
            self._answered(number, block_number)
