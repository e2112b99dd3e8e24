"""Timing of trainers that share a face: `batch(documents)`, then `step(batch)` for one optimiser step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

import torch
from bench.peers.data import Document
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


class Trainer(Protocol):
    name: str
    device: torch.device

    def groups(self, documents: Sequence[Document], tokens: int) -> list[list[Document]]: ...
    def batch(self, documents: Sequence[Document]) -> Any: ...
    def step(self, batch: Any, mark: Callable[[str], None] = ...) -> None: ...


def unmarked(name: str) -> None:
    """Nobody asks how long the parts of a step take."""


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
    parts: dict[str, float] = field(default_factory=dict)
    """Mean milliseconds of forward, backward and optimiser, by the GPU's own clock; empty on a CPU."""

    @property
    def tokens_per_second(self) -> float:
        """Over all steps together."""
        return 1000 * sum(self.tokens) / sum(self.milliseconds)

    @property
    def median_ms(self) -> float:
        return median(self.milliseconds)


class Parts:
    """Events between the parts of steps; reading them waits for nothing but the last one."""

    def __init__(self) -> None:
        self._events: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, name: str) -> None:
        """The part that has run until here."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((name, event))

    def means(self, steps: int) -> dict[str, float]:
        """Of so many steps, each of which begins with the mark "begin"."""
        torch.cuda.synchronize()
        found: dict[str, float] = {}
        for (_, before), (name, event) in pairwise(self._events):
            if name != "begin":
                found[name] = found.get(name, 0.0) + before.elapsed_time(event) / steps
        return found


def timed_step(trainer: Trainer, batch: Any, mark: Callable[[str], None] = unmarked) -> float:
    """Milliseconds of one step, the device's queue empty before and after."""
    cuda = trainer.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    mark("begin")
    trainer.step(batch, mark)
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
    times, tokens, parts = [], [], Parts()
    for i in range(steps or len(groups)):
        group = groups[i % len(groups)]
        times.append(timed_step(trainer, trainer.batch(group), parts.mark if cuda else unmarked))
        tokens.append(sum(map(len, group)))
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    return Measured(trainer.name, times, tokens, peak, parts.means(len(times)) if cuda else {})


def kernels(trainer: Trainer, documents: Sequence[Document], rows: int = 25) -> str:
    """A table of where one step's time goes: by GPU kernel, or on a CPU by operator."""
    cuda = trainer.device.type == "cuda"
    batch = trainer.batch(documents)
    timed_step(trainer, batch)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as found:
        timed_step(trainer, batch)
    if not cuda:
        return found.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=40)
    spent = [e for e in found.key_averages() if e.device_type == DeviceType.CUDA]
    whole = sum(e.self_device_time_total for e in spent) or 1.0
    lines = [f"{whole / 1000:.1f} ms in kernels of one step"]
    for e in sorted(spent, key=lambda e: -e.self_device_time_total)[:rows]:
        ms = e.self_device_time_total / 1000
        lines.append(f"{ms:8.2f} ms {ms * 1000 / whole:6.1%} {e.count:5} x  {e.key[:110]}")
    return "\n".join(lines)
