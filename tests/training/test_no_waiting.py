"""Between reports nothing of a step is read by the host, which on a GPU would wait for all that was launched before.

Seen on the CPU, where there is nothing to wait for, by the operations that would: reading a number out of a tensor, and
those whose result's size depends on values. The drafter's own arithmetic is left out: it is another on a GPU.
"""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.made import load_job, make_job
from tests.training.running import run
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3.training.callbacks import Metrics
from eagle3.training.finite import FiniteWatch
from eagle3.training.module import DrafterModule

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "equal", "repeat_interleave")


class Waits(TorchDispatchMode):
    """Counts the operations that would wait, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        by_mask = name in ("index", "index_put_") and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name.startswith(WAITS) or by_mask:
            stack = [frame.filename for frame in traceback.extract_stack()]
            if not any("/eagle3/drafter/" in file for file in stack):
                self.seen[name] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_between_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the loader's batch to the end of the step; a report, a save and a validation do read."""
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1, "log_every": 1000})
    steps: list[Counter[str]] = []
    begin, end = DrafterModule.on_train_batch_start, Metrics.on_train_batch_end
    waits = Waits()

    def started(self: DrafterModule, *args: Any) -> None:
        waits.__enter__()
        begin(self, *args)

    def ended(self: Metrics, trainer: Any, module: Any, *args: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FiniteWatch, "check", lambda self: None)  # of a CPU only: each step's loss is looked at
            waits.__exit__(None, None, None)
            if trainer.global_step < module.total_steps:
                with waits:
                    end(self, trainer, module, *args)
            else:
                end(self, trainer, module, *args)
        steps.append(waits.seen.copy())

    monkeypatch.setattr(DrafterModule, "on_train_batch_start", started)
    monkeypatch.setattr(Metrics, "on_train_batch_end", ended)
    run(job)
    assert len(steps) > 5
    assert not steps[-1], steps
