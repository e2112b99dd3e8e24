"""Bounded host memory between the model and the disk.

On a GPU the states are copied into pinned blocks on a side stream, so that the next forward pass starts at once; a
block is free again when its rows are written. Only when no block is free does the forward pass wait. On a CPU the
same blocks are plain memory and the copy is done at once. States that are stored in 8 bits are converted before the
copy, on the device and on the same stream.
"""

import ctypes
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from .batch import Batch, Segment, cut, runs
from .placement import SCALED, Placement
from .quantise import CHUNK_BYTES, quantise


class Block:
    """Room for rows of every state, of one stored type at a time, and what a writer needs to check them."""

    def __init__(self, placement: Placement, nbytes: int, most_rows: int, pinned: bool) -> None:
        self._count, self._hidden = len(placement.states), placement.hidden_size
        self._room = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        self.ids = torch.empty(most_rows, dtype=torch.int32, pin_memory=pinned)
        self.peaks = torch.empty((self._count, most_rows), dtype=torch.float32, pin_memory=pinned)
        """Largest magnitude in each row: finite exactly when the whole row is."""
        self.scales = torch.empty((self._count, most_rows), dtype=torch.float32, pin_memory=pinned)
        """Of rows in 8 bits."""
        self.id_bytes = _view(self.ids)
        self.scale_bytes = [_view(scales) for scales in self.scales]
        self.event: Any = None
        self._users = 0
        self._lock = threading.Lock()

    def lay_out(self, dtype: torch.dtype, rows: int) -> None:
        """Makes room for `rows` rows of every state; what was in the block is gone."""
        self.row_bytes = self._hidden * dtype.itemsize
        room = self._room[: self._count * rows * self.row_bytes].view(dtype)
        self.states = room.view(self._count, rows, self._hidden)
        self.bytes = [_view(state) for state in self.states]

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
        token = {s.dtype: placement.hidden_size * s.dtype.itemsize * len(placement.states) for s in placement.shards}
        """Bytes of a token in all states, by the type that they are stored as."""
        self.block_bytes = max(block_bytes, *token.values())
        self.block_rows = {dtype: self.block_bytes // nbytes for dtype, nbytes in token.items()}
        self.blocks = max(2, total_bytes // self.block_bytes)
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
        return Block(self.placement, self.block_bytes, max(self.block_rows.values()), self.pinned)

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
        for dtype, rows in self.block_rows.items():
            of_type = [segment for segment in batch.segments if self._dtype_of(segment) is dtype]
            for segments in cut(of_type, rows) if of_type else []:
                block = self._take()
                block.lay_out(dtype, rows)
                self._copy(block, runs(segments), batch.input_ids, states)
                row = 0
                moved = []
                for segment in segments:
                    moved.append(segment._replace(row=row))
                    row += segment.count
                yield block, moved

    def _dtype_of(self, segment: Segment) -> torch.dtype:
        return self.placement.shards[self.placement.shard[segment.sequence]].dtype

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
            _fill_state(block, number, at, state[first : first + count])
        at += count


def _fill_state(block: Block, number: int, at: int, source: torch.Tensor) -> None:
    scaled = block.states.dtype is SCALED
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
