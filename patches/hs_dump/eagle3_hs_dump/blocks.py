"""The memory that the model's process fills and the writers' processes read: blocks of rows, all in one anonymous file.

Without torch, which the writers' processes do not load.
"""

import mmap
from dataclasses import dataclass

from .placement import ITEM_BYTES, Placement

WIDE = 4
"""Bytes of a token id, a peak and a scale."""


@dataclass(frozen=True)
class Blocks:
    """Of `count` blocks: where in the memory everything of a block is."""

    states: int
    """K + 1."""
    hidden_size: int
    count: int
    state_bytes: int
    """Room for rows of every state, of one stored type at a time."""
    most_rows: int
    """Of the smallest type."""

    @staticmethod
    def of(placement: Placement, total_bytes: int, block_bytes: int) -> "Blocks":
        """As many blocks of `block_bytes` as go into `total_bytes`, but at least two of one row."""
        states, hidden = len(placement.states), placement.hidden_size
        sizes = [states * hidden * ITEM_BYTES[shard.dtype] for shard in placement.shards]
        room = max(block_bytes, *sizes)
        return Blocks(states, hidden, max(2, total_bytes // room), room, room // min(sizes))

    def rows(self, dtype: str) -> int:
        """How many rows of a stored type a block holds."""
        return self.state_bytes // (self.states * self.hidden_size * ITEM_BYTES[dtype])

    @property
    def ids(self) -> int:
        """Offset in a block of the token ids, int32."""
        return -(-self.state_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

    @property
    def peaks(self) -> int:
        """Of each state's largest magnitude in each row, float32."""
        return self.ids + self.most_rows * WIDE

    @property
    def scales(self) -> int:
        """Of each state's scale of each row in 8 bits, float32."""
        return self.peaks + self.states * self.most_rows * WIDE

    @property
    def stride(self) -> int:
        """Bytes from block to block."""
        end = self.scales + self.states * self.most_rows * WIDE
        return -(-end // mmap.PAGESIZE) * mmap.PAGESIZE

    @property
    def nbytes(self) -> int:
        return self.count * self.stride
