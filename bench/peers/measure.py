"""Timing of trainers that share a face: `batch(documents)`, then `step(batch)` for one optimiser step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch
from bench.peers.data import Document


class Trainer(Protocol):
    name: str
    device: torch.device

    def groups(self, documents: Sequence[Document], tokens: int) -> list[list[Document]]: ...
    def batch(self, documents: Sequence[Document]) -> Any: ...
    def step(self, batch: Any) -> None: ...


@dataclass(frozen=True)
class Measured:
    """Of one trainer; a batch was on the device before its step began."""

    name: str
    milliseconds: list[float]
    """Of each optimiser step: forward, backward, clipping, AdamW."""
    tokens: list[int]
    """Of the documents of each step: padding is not counted."""
    peak_bytes: int
    """Of the GPU's memory while stepping; 0 on a CPU."""

    @property
    def tokens_per_second(self) -> float:
        """Over all steps together."""
        return 1000 * sum(self.tokens) / sum(self.milliseconds)

    @property
    def median_ms(self) -> float:
        return median(self.milliseconds)


def timed_step(trainer: Trainer, batch: Any) -> float:
    """Milliseconds of one step, the device's queue empty before and after."""
    cuda = trainer.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    trainer.step(batch)
    if cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def measure(trainer: Trainer, groups: Sequence[Sequence[Document]], steps: int | None = None) -> Measured:
    """`steps` steps over the groups in turn (null: each group once), after a warm-up that has met all their shapes."""
    shapes = {tuple(len(document) for document in group) for group in groups}
    for i in range(3 if len(shapes) == 1 else max(len(groups), 3)):
        timed_step(trainer, trainer.batch(groups[i % len(groups)]))
    cuda = trainer.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    times, tokens = [], []
    for i in range(steps or len(groups)):
        group = groups[i % len(groups)]
        times.append(timed_step(trainer, trainer.batch(group)))
        tokens.append(sum(map(len, group)))
    return Measured(trainer.name, times, tokens, torch.cuda.max_memory_allocated() if cuda else 0)
