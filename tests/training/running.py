"""Running a training in this process, and looking at what it left."""

import json
from pathlib import Path

import torch

from eagle3.metrics import JsonlReporter, Tail
from eagle3.training.checkpoints import load_checkpoint
from eagle3.training.job import Job
from eagle3.training.machine import Machine
from eagle3.training.run import train
from eagle3.training.stop import StopSignal


def run(job: Job, stop: StopSignal | None = None) -> None:
    """With one thread, as tiny tensors want it."""
    torch.set_num_threads(1)
    train(job, Machine.of(job.config.trainer), JsonlReporter(job.out / "metrics.jsonl"), stop or StopSignal())


def weights(out: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return load_checkpoint(out / "checkpoints" / name)["state_dict"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rows(out: Path, stage: str) -> dict[int, dict[str, float]]:
    """The figures of each step that do not depend on the clock, as last reported."""
    found = {}
    for row in Tail(out / "metrics.jsonl").rows():
        if f"{stage}/loss" in row.get("values", {}):
            found[row["step"]] = {k: v for k, v in row["values"].items() if not _timed(k)}
    return found


def continued(out: Path) -> list[str]:
    """What was said of where a training goes on."""
    notes = [row["note"] for row in Tail(out / "metrics.jsonl").rows() if "note" in row]
    return [note for note in notes if note.startswith("goes on")]


def summary(out: Path) -> dict[str, float]:
    """summary.json without what depends on the clock."""
    found = json.loads((out / "summary.json").read_text())
    return {name: value for name, value in found.items() if not _timed(name)}


def _timed(name: str) -> bool:
    return name.endswith(("seconds", "_per_s", "data_wait", "mfu"))
