"""Memory for batches that is used again: touching new pages takes several times as long as filling used ones."""

import threading
import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor


class Buffers:
    """Blocks of memory, each handed out again once no tensor on it is left; as many as were ever in use at a time.

    For pageable memory; torch keeps pinned memory for reuse itself. Usable from several threads.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._returned: deque[np.ndarray] = deque()
        """Filled whenever a tensor dies, in any thread and even inside `take`: so without the lock."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["Buffers"], tuple[()]]:
        return Buffers, ()  # another process has memory of its own

    def take(self, nbytes: int) -> Tensor:
        """`[nbytes]` uint8, not initialised."""
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            self._free.sort(key=len)
            fitting = next((n for n, block in enumerate(self._free) if len(block) >= nbytes), None)
            if fitting is not None:
                block = self._free.pop(fitting)
            else:
                if self._free:  # the largest gives way to one that serves for more
                    self._free.pop()
                block = np.empty(nbytes, np.uint8)
        # The tensor keeps this view, and nobody else does: its end is the end of every tensor on the block.
        view = block[:nbytes]
        weakref.finalize(view, self._returned.append, block).atexit = False
        return torch.from_numpy(view)
