"""Bounded host memory between the model and the disk.

On a GPU the states are copied into pinned blocks on a side stream, so that the next forward pass starts at once; a
block is free again when its rows are written. Only when no block is free does the forward pass wait. On a CPU the
copy is done at once. States that are stored in 8 bits are converted before the copy, on the device and on the same
stream.
"""

import mmap
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from . import DumpError
from .batch import Batch, Segment, cut, runs
from .blocks import Blocks
from .placement import SCALED, Placement
from .quantise import CHUNK_BYTES, quantise

DEVICE_BYTES = 512 * 1024 * 1024
"""What the dump may take of the device's memory."""
TORCH = {"bfloat16": torch.bfloat16, SCALED: torch.float8_e4m3fn}


class Block:
    """One block as tensors; `number` tells the writers which."""

    def __init__(self, blocks: Blocks, memory: torch.Tensor, number: int) -> None:
        self.number = number
        self._blocks = blocks
        self._room = memory[number * blocks.stride : (number + 1) * blocks.stride]
        self.ids = self._wide(blocks.ids, 1, torch.int32)[0]
        self.peaks = self._wide(blocks.peaks, blocks.states, torch.float32)
        """Largest magnitude in each row: finite exactly when the whole row is."""
        self.scales = self._wide(blocks.scales, blocks.states, torch.float32)
        """Of rows in 8 bits."""
        self.event: Any = None
        self._users = 0
        self._lock = threading.Lock()

    def _wide(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        rows = self._blocks.most_rows
        return self._room[offset : offset + 4 * count * rows].view(dtype).view(count, rows)

    def lay_out(self, dtype: str) -> None:
        """Makes room for rows of a stored type; what was in the block is gone."""
        kind, rows = TORCH[dtype], self._blocks.rows(dtype)
        size = self._blocks.states * rows * self._blocks.hidden_size * kind.itemsize
        self.states = self._room[:size].view(kind).view(self._blocks.states, rows, self._blocks.hidden_size)

    def hand_out(self, users: int) -> None:
        """To be called before the first of `users` writers can see the block."""
        self._users = users

    def done(self) -> bool:
        """True for the last writer."""
        with self._lock:
            self._users -= 1
            return self._users == 0


class Staging:
    """The pool of blocks, and the copy into them. Used by the model's thread only, except for `release`."""

    def __init__(self, placement: Placement, device: torch.device, total_bytes: int, block_bytes: int) -> None:
        """Raises DumpError when the memory cannot be pinned."""
        self.placement = placement
        self.layout = Blocks.of(placement, total_bytes, block_bytes)
        self.descriptor = os.memfd_create("eagle3-hs-dump")
        os.ftruncate(self.descriptor, self.layout.nbytes)
        # On a CPU a page takes memory only once it is written to.
        memory = torch.frombuffer(mmap.mmap(self.descriptor, self.layout.nbytes), dtype=torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            _pin(memory)
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        for number in range(self.layout.count):
            self._free.put(Block(self.layout, memory, number))
        self._types = {shard.dtype for shard in placement.shards}
        self._held: list[torch.Tensor] = []
        """Of the last batch: what is copied until `_copied`."""
        self._copied: Any = None
        self.stalls = 0
        self.stalled_seconds = 0.0

    def _take(self) -> Block:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            pass
        began = time.perf_counter()
        self.stalls += 1
        block = self._free.get()
        self.stalled_seconds += time.perf_counter() - began
        return block

    def release(self, block: Block) -> None:
        self._free.put(block)

    @property
    def in_use(self) -> int:
        """Blocks that hold rows not yet written."""
        return self.layout.count - self._free.qsize()

    def stage(self, batch: Batch, states: list[torch.Tensor]) -> Iterator[tuple[Block, list[Segment]]]:
        """Starts copying a batch's rows; segments come back with rows counted within their block.

        One block at a time, to be handed to the writers before the next is asked for: a batch may be larger than
        all blocks together.

        Args:
            states: K + 1 tensors `[>= T, H]` on the model's device.
        """
        self._let_go()
        for dtype in self._types:
            of_type = [segment for segment in batch.segments if self._dtype_of(segment) == dtype]
            for segments in cut(of_type, self.layout.rows(dtype)) if of_type else []:
                block = self._take()
                block.lay_out(dtype)
                self._copy(block, runs(segments), batch.input_ids, states)
                row = 0
                moved = []
                for segment in segments:
                    moved.append(segment._replace(row=row))
                    row += segment.count
                yield block, moved

    def _dtype_of(self, segment: Segment) -> str:
        return self.placement.shards[self.placement.shard[segment.sequence]].dtype

    def before_capture(self, captured: int) -> None:
        """To be called before the model captures a state, `captured` of the same pass being there already.

        The last batch's states are kept until their copy is done for certain, which the end of the next pass is. Where
        both together would take too much, the next pass waits for the copy here.
        """
        held = sum(tensor.nbytes for tensor in self._held)
        if held * (1 + (captured + 1) / self.layout.states) > DEVICE_BYTES:
            self._let_go()

    def _let_go(self) -> None:
        """Gives the last batch's memory back to the model's stream, once it is copied.

        Left to the allocator (`record_stream`) it would not be free while the host is ahead of the device, and the
        states of several batches would pile up.
        """
        if self._held:
            torch.cuda.current_stream().wait_event(self._copied)
            self._held = []

    def _copy(self, block: Block, rows: list[tuple[int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
        if self._stream is None:
            _fill(block, rows, ids, states)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _fill(block, rows, ids, states)
            block.event = torch.cuda.Event(blocking=True)
            block.event.record()
        self._held, self._copied = [ids, *states], block.event


def _pin(memory: torch.Tensor) -> None:
    code = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)  # pyright: ignore
    if int(code) != 0:
        raise DumpError(
            f"{memory.numel() >> 20} MiB of memory cannot be pinned ({code}): set SGLANG_HS_DUMP_BUFFER_MIB lower"
        )


def _fill(block: Block, rows: list[tuple[int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
    at = 0
    for first, count in rows:
        block.ids[at : at + count].copy_(ids[first : first + count], non_blocking=True)
        for number, state in enumerate(states):
            _fill_state(block, number, at, state[first : first + count])
        at += count


def _fill_state(block: Block, number: int, at: int, source: torch.Tensor) -> None:
    scaled = block.states.dtype is TORCH[SCALED]
    # Only what is converted is cut up: it needs temporaries.
    part = max(1, CHUNK_BYTES // (4 * source.shape[1])) if scaled else len(source)
    for rows in source.split(part):
        to = slice(at, at + len(rows))
        peaks = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, dtype=torch.float32)
        block.peaks[number, to].copy_(peaks, non_blocking=True)
        if scaled:
            rows, scales = quantise(rows, peaks)  # noqa: PLW2901
            block.scales[number, to].copy_(scales, non_blocking=True)
        block.states[number, to].copy_(rows, non_blocking=True)
        at = to.stop
