"""What continues from a checkpoint ends with the very weights, bit by bit, of the training that was never stopped."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.made import load_job, make_job

from eagle3.data.loader import PackedLoader
from eagle3.metrics import JsonlReporter
from eagle3.training.checkpoints import AtomicCheckpoints, load_checkpoint
from eagle3.training.job import Job
from eagle3.training.machine import Machine
from eagle3.training.run import train
from eagle3.training.stop import StopSignal


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def run(job: Job) -> None:
    train(job, Machine.of(job.config.trainer), JsonlReporter(job.out / "metrics.jsonl"), StopSignal())


def weights(out: Path, name: str = "last.ckpt") -> dict[str, torch.Tensor]:
    return load_checkpoint(out / "checkpoints" / name)["state_dict"]


def rows(out: Path, stage: str) -> dict[int, dict[str, float]]:
    """The figures of each step that do not depend on the clock, as last reported."""
    found = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if f"{stage}/loss" in row.get("values", {}):
            timed = ("tokens_per_s", "data_wait")
            found[row["step"]] = {k: v for k, v in row["values"].items() if not k.endswith(timed)}
    return found


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "trainer",
    [
        {"epochs": 3, "checkpoint_every": 1},
        {"epochs": 2, "checkpoint_every": 1, "accumulate": 3, "num_workers": 2},
        {"epochs": 2, "checkpoint_every": 1, "max_steps": 9},
        {"epochs": 2, "checkpoint_every": 1, "max_steps": 4, "accumulate": 2},
    ],
    ids=["plain", "accumulated", "stopped-in-second-epoch", "stopped-in-first-epoch"],
)
def test_every_checkpoint_continues_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any]
) -> None:
    make_job(tmp_path)
    seen: list[tuple[int, tuple[int, ...]]] = []
    read = PackedLoader.read

    def noted(self: PackedLoader, epoch: int, i: int) -> Any:
        batch = read(self, epoch, i)
        seen.append((epoch * 1000 + i, tuple(batch.batch.sample_ids.tolist())))
        return batch

    save = AtomicCheckpoints.save_checkpoint
    copies: list[Path] = []

    def copied(self: AtomicCheckpoints, checkpoint: dict[str, Any], path: str | Path, **rest: Any) -> None:
        save(self, checkpoint, path, **rest)
        if Path(path).name == "last.ckpt":
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(Path(path).parent, copies[-1] / "checkpoints")

    whole = load_job(tmp_path, tmp_path / "whole", trainer=trainer)
    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpoints, "save_checkpoint", copied)
        patch.setattr(PackedLoader, "read", noted)
        run(whole)
    assert len(copies) >= 4
    order = dict(seen)

    for copy in copies:
        step = load_checkpoint(copy / "checkpoints" / "last.ckpt")["global_step"]
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(PackedLoader, "read", noted)
            run(load_job(tmp_path, copy, trainer=trainer))
        assert same(weights(copy), weights(whole.out)), f"continued after step {step}"
        assert same(weights(copy, "best.ckpt"), weights(whole.out, "best.ckpt")), f"continued after step {step}"
        assert all(order[at] == ids for at, ids in seen if at in order)
        assert rows(copy, "train") == {s: row for s, row in rows(whole.out, "train").items() if s > step}
        ends = [s for s in rows(whole.out, "val") if s > step]
        assert rows(copy, "val") == {s: rows(whole.out, "val")[s] for s in ends}
        summaries = [json.loads((out / "summary.json").read_text()) for out in (copy, whole.out)]
        for name, value in summaries[1].items():
            if "seconds" not in name and "per_s" not in name and "wait" not in name:
                assert summaries[0][name] == value, name
