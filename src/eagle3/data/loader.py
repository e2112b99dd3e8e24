"""The training loader: reads packed batches ahead in threads, and knows exactly how many were handed out.

Threads rather than worker processes, because a batch is a copy out of mapped files, which runs without the interpreter
lock: it goes straight into pinned memory, where a worker process's would be copied twice more. So the loader's state is
just the epoch and the number of batches handed out, whatever was read ahead; Lightning stores it with each checkpoint.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eagle3.data.dataset import SequenceDataset
from eagle3.data.packing import Packing
from eagle3.drafter.batch import Batch
from eagle3.drafter.flops import Work
from eagle3.drafter.plan import Plan

AHEAD = 2
"""Batches read ahead for each worker."""


@dataclass(frozen=True)
class TrainBatch:
    """A micro-batch, and what its optimiser step is normalised by."""

    batch: Batch
    plan: Plan
    """Made here, where nothing waits for a device to count with."""
    step_counts: Tensor
    """[steps] int64: scored positions of each training-time-test step over all ranks and accumulated batches."""
    tokens: int
    """Of this micro-batch and of those that the other ranks take beside it."""
    work: Work
    """Of this micro-batch alone: what MFU is counted from."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "TrainBatch":
        return replace(
            self,
            batch=self.batch.to(device, non_blocking),
            plan=self.plan.to(device, non_blocking),
            step_counts=self.step_counts.to(device, non_blocking=non_blocking),
        )


class _Epoch:
    """What Lightning calls a sampler: it is told the epoch before each one."""

    def __init__(self) -> None:
        self.epoch = 0
        self.handed_out = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.handed_out = epoch, 0


class PackedLoader:
    """Micro-batches of one rank, epoch by epoch, resumable between any two of them."""

    def __init__(
        self,
        dataset: SequenceDataset,
        packing: Packing,
        scored: Tensor,
        rank: int = 0,
        accumulate: int = 1,
        num_workers: int = 0,
        pin: bool = False,
    ) -> None:
        """
        Args:
            scored: `[n, steps]` int64, scored positions of each sequence (`scored_counts`).
            accumulate: micro-batches of a rank in one optimiser step; the epoch's last step may have fewer.
            num_workers: reading threads; 0 reads when asked.
        """
        self.dataset, self.packing, self.scored = dataset, packing, scored
        self.rank, self.accumulate, self.num_workers, self.pin = rank, accumulate, num_workers, pin
        self.batches = packing.count // packing.world
        """Of this rank in an epoch; a caller may lower it, and the rest of each epoch is left out."""
        self.sampler = _Epoch()
        self.waited_s = 0.0
        """Seconds that batches were waited for, since the loader was made."""

    def __len__(self) -> int:
        return self.batches

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.sampler.epoch, "handed_out": self.sampler.handed_out}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.sampler.epoch, self.sampler.handed_out = state["epoch"], state["handed_out"]

    def __iter__(self) -> Iterator[TrainBatch]:
        # A generator: nothing happens before the first batch is asked for, when the epoch has been set.
        epoch, start = self.sampler.epoch, self.sampler.handed_out
        for batch in _ahead(lambda i: self.read(epoch, i), range(start, len(self)), self.num_workers, self._wait):
            self.sampler.handed_out += 1
            yield batch

    def read(self, epoch: int, i: int) -> TrainBatch:
        """The rank's i-th micro-batch of an epoch."""
        batches = self.packing.epoch(epoch)
        window = self.accumulate * self.packing.world
        first = i // self.accumulate * window
        together = [n for batch in batches[first : first + window] for n in batch]
        beside = batches[i * self.packing.world : (i + 1) * self.packing.world]
        batch, steps = self.dataset.batch(beside[self.rank], pin=self.pin), self.scored.shape[1]
        plan, counts = Plan.of(batch, steps), self.scored[together].sum(0)
        return TrainBatch(
            batch=batch,
            plan=plan.each(Tensor.pin_memory) if self.pin else plan,
            step_counts=counts.pin_memory() if self.pin else counts,
            tokens=int(sum(self.dataset.lengths[n] for one in beside for n in one)),
            work=Work.of(batch.loss_mask, batch.document, batch.position, steps),
        )

    def _wait(self, seconds: float) -> None:
        self.waited_s += seconds


class SequentialLoader:
    """Each given batch once, in order: the held-out split."""

    def __init__(
        self, dataset: SequenceDataset, batches: Sequence[Sequence[int]], num_workers: int = 0, pin: bool = False
    ) -> None:
        self.dataset, self.batches, self.num_workers, self.pin = dataset, batches, num_workers, pin

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return _ahead(self.read, range(len(self.batches)), self.num_workers, lambda _: None)

    def read(self, i: int) -> Batch:
        return self.dataset.batch(self.batches[i], pin=self.pin)


def _ahead(
    read: Callable[[int], Any], items: range, num_workers: int, waited: Callable[[float], None]
) -> Iterator[Any]:
    """`read(i)` of each item in order, some of them ahead in threads; tells the time that each was waited for."""
    pool = ThreadPoolExecutor(num_workers, "eagle3-read") if num_workers else None
    pending: deque[Future[Any]] = deque()
    try:
        for i in items:
            begin = time.perf_counter()
            if pool is None:
                result = read(i)
            else:
                # Item i is pending already unless it is the first.
                until = min(i + 1 + AHEAD * num_workers, items.stop)
                pending.extend(pool.submit(read, j) for j in range(i + len(pending), until))
                result = pending.popleft().result()
            waited(time.perf_counter() - begin)
            yield result
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
