"""Bounded host memory between the model and the disk.

On a GPU the states are copied into pinned blocks on a side stream, so that the next forward pass starts at once; a
block is free again when its rows are written. Only when no block is free does the forward pass wait. On a CPU the
same blocks are plain memory and the copy is done at once.
"""

import ctypes
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from .batch import Batch, Segment, cut, runs
from .placement import Placement


class Block:
    """Room for `rows` rows of every state, and what a writer needs to check them."""

    def __init__(self, placement: Placement, rows: int, pinned: bool) -> None:
        states = len(placement.states)
        self.states = torch.empty((states, rows, placement.hidden_size), dtype=placement.dtype, pin_memory=pinned)
        self.ids = torch.empty(rows, dtype=torch.int32, pin_memory=pinned)
        self.peaks = torch.empty((states, rows), dtype=torch.float32, pin_memory=pinned)
        """Largest magnitude in each row: finite exactly when the whole row is."""
        self.row_bytes = placement.hidden_size * placement.dtype.itemsize
        self.bytes = [_view(self.states[number]) for number in range(states)]
        self.id_bytes = _view(self.ids)
        self.event: Any = None
        self._users = 0
        self._lock = threading.Lock()

    def hand_out(self, users: int) -> None:
        """To be called before the first of `users` writers can see the block."""
        self._users = users

    def done(self) -> bool:
        """True for the last writer."""
        with self._lock:
            self._users -= 1
            return self._users == 0


def _view(tensor: torch.Tensor) -> memoryview:
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class Staging:
    """The pool of blocks, and the copy into them. Used by the model's thread only, except for `release`."""

    def __init__(self, placement: Placement, device: torch.device, total_bytes: int, block_bytes: int) -> None:
        self.placement = placement
        self.pinned = device.type == "cuda"
        row = placement.hidden_size * placement.dtype.itemsize * len(placement.states)
        self.block_rows = max(1, block_bytes // row)
        self.blocks = max(2, total_bytes // (self.block_rows * row))
        self._free: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._made = 0
        self.stalls = 0
        self.stalled_seconds = 0.0
        self._stream = torch.cuda.Stream(device) if self.pinned else None
        if self.pinned:  # pinning takes milliseconds a block: not during a forward pass
            for _ in range(self.blocks):
                self._free.put(self._make())

    def _make(self) -> Block:
        self._made += 1
        return Block(self.placement, self.block_rows, self.pinned)

    def _take(self) -> Block:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._made < self.blocks:
                return self._make()
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
        return self._made - self._free.qsize()

    def stage(self, batch: Batch, states: list[torch.Tensor]) -> Iterator[tuple[Block, list[Segment]]]:
        """Starts copying a batch's rows; segments come back with rows counted within their block.

        One block at a time, to be handed to the writers before the next is asked for: a batch may be larger than
        all blocks together.

        Args:
            states: K + 1 tensors `[>= T, H]` on the model's device.
        """
        for segments in cut(batch.segments, self.block_rows):
            block = self._take()
            self._copy(block, runs(segments), batch.input_ids, states)
            row = 0
            moved = []
            for segment in segments:
                moved.append(segment._replace(row=row))
                row += segment.count
            yield block, moved

    def _copy(self, block: Block, rows: list[tuple[int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
        if self._stream is None:
            _fill(block, rows, ids, states)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _fill(block, rows, ids, states)
            block.event = torch.cuda.Event(blocking=True)
            block.event.record()
        for tensor in (ids, *states):  # the allocator must not give the memory away before the copy is done
            tensor.record_stream(self._stream)


def _fill(block: Block, rows: list[tuple[int, int]], ids: torch.Tensor, states: list[torch.Tensor]) -> None:
    at = 0
    for first, count in rows:
        block.ids[at : at + count].copy_(ids[first : first + count], non_blocking=True)
        for number, state in enumerate(states):
            source = state[first : first + count]
            block.states[number, at : at + count].copy_(source, non_blocking=True)
            peaks = torch.linalg.vector_norm(source, ord=float("inf"), dim=-1, dtype=torch.float32)
            block.peaks[number, at : at + count].copy_(peaks, non_blocking=True)
        at += count
