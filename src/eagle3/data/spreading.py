"""In which order sequences are sent: several shards are filled side by side.

A file system lets one process at a time write to a file (Linux holds the inode's lock for a whole `write`), so the
writers of a fast server would wait for each other if all its sequences were of one shard.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

LANES = 8
"""Shards that are filled at the same time."""
RUN_TOKENS = 8192
"""Of one shard in a row: about what is sent in one request, and twice what fits into a block of the writers'."""


def spread(
    sequences: Sequence[int], shard: Sequence[int] | np.ndarray, length: Sequence[int] | np.ndarray
) -> Iterator[int]:
    """The sequences in runs of the same shard, `LANES` shards taking turns; within a shard they keep their order.

    Args:
        sequences: positions, those of a shard next to each other.
        shard: number of the shard, by position.
        length: tokens, by position.
    """
    shards: dict[int, deque[int]] = {}
    for i in sequences:
        shards.setdefault(int(shard[i]), deque()).append(i)
    waiting = iter(shards.values())
    lanes = deque(islice(waiting, LANES))
    while lanes:
        lane, tokens = lanes.popleft(), 0
        while lane and tokens < RUN_TOKENS:
            tokens += int(length[lane[0]])
            yield lane.popleft()
        if lane or (lane := next(waiting, None)):
            lanes.append(lane)
