"""What continues from a checkpoint ends with the very weights, bit by bit, of the training that was never stopped."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.training.made import load_job, make_job
from tests.training.running import continued, rows, run, same, summary, weights

from eagle3.data.loader import PackedLoader, SequentialLoader
from eagle3.errors import DataError, Interrupted
from eagle3.training.checkpoints import AtomicCheckpoints, load_checkpoint
from eagle3.training.stop import StopSignal


def check_same_end(out: Path, whole: Path) -> None:
    assert same(weights(out), weights(whole))
    assert same(weights(out, "best.ckpt"), weights(whole, "best.ckpt"))
    assert summary(out) == summary(whole)


@pytest.mark.parametrize(
    ("trainer", "num_layers"),
    [
        ({"epochs": 3}, 1),
        ({"epochs": 2}, 2),
        ({"epochs": 2, "accumulate": 3, "num_workers": 2}, 1),
        ({"epochs": 2, "max_steps": 9}, 1),
        ({"epochs": 2, "max_steps": 2, "accumulate": 2}, 1),
    ],
    ids=["plain", "two-layers", "accumulated", "ends-in-second-epoch", "ends-in-first-epoch"],
)
def test_every_checkpoint_continues_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], num_layers: int
) -> None:
    make_job(tmp_path)
    drafter = {"num_layers": num_layers}
    trainer = trainer | {"checkpoint_every": 1}
    seen: list[tuple[tuple[int, int], tuple[int, ...]]] = []
    read = PackedLoader.read

    def noted(self: PackedLoader, epoch: int, i: int) -> Any:
        batch = read(self, epoch, i)
        seen.append(((epoch, i), tuple(batch.batch.sample_ids.tolist())))
        return batch

    save = AtomicCheckpoints.save_checkpoint
    copies: list[Path] = []

    def copied(self: AtomicCheckpoints, checkpoint: dict[str, Any], path: str | Path, **rest: Any) -> None:
        save(self, checkpoint, path, **rest)
        if Path(path).name == "last.ckpt":
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(Path(path).parent, copies[-1] / "checkpoints")

    whole = load_job(tmp_path, tmp_path / "whole", trainer=trainer, drafter=drafter)
    monkeypatch.setattr(PackedLoader, "read", noted)
    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpoints, "save_checkpoint", copied)
        run(whole)
    assert len(copies) >= 2
    order = dict(seen)
    training, validation = rows(whole.out, "train"), rows(whole.out, "val")
    assert continued(whole.out) == []
    total = int(summary(whole.out)["train/steps"])

    for copy in copies:
        step = load_checkpoint(copy / "checkpoints" / "last.ckpt")["global_step"]
        seen.clear()
        run(load_job(tmp_path, copy, trainer=trainer, drafter=drafter))
        check_same_end(copy, whole.out)
        epoch = 1 + sum(end <= step for end in validation if end < total)  # each but the last ends where one began
        said = [f"goes on from step {step} of {total} (epoch {epoch})"]
        assert continued(copy) == (said if rows(copy, "train") or rows(copy, "val") else [])
        assert dict(seen).items() <= order.items()
        assert rows(copy, "train") == {s: row for s, row in training.items() if s > step}
        assert rows(copy, "val") == {s: row for s, row in validation.items() if s > step}


def stopping_at(loader: type, count: int) -> Any:
    """A `read` that sends this process SIGTERM, and SIGINT for good measure, at the count-th call."""
    original = loader.read
    calls = 0

    def stopping(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    return stopping


@pytest.mark.parametrize(
    ("loader", "count", "validations"),
    [
        (PackedLoader, 1, 0),
        (PackedLoader, 4, 0),
        (PackedLoader, 17, 1),
        (SequentialLoader, 2, 0),
        (SequentialLoader, 8, 1),
    ],
)
def test_signals_save_and_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: type, count: int, validations: int
) -> None:
    """In training batches (two are accumulated), the last ones of an epoch among them, and in validation."""
    make_job(tmp_path)
    trainer = {"accumulate": 2, "tokens_per_batch": 64, "checkpoint_every": 1000}
    whole = load_job(tmp_path, tmp_path / "whole", trainer=trainer)
    run(whole)
    stopped = load_job(tmp_path, tmp_path / "stopped", trainer=trainer)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with monkeypatch.context() as patch:
            patch.setattr(loader, "read", stopping_at(loader, count))
            with pytest.raises(Interrupted, match=r"last\.ckpt is saved"):
                run(stopped)
        assert len(rows(stopped.out, "val")) == validations
        assert not (stopped.out / "summary.json").exists()
        assert continued(stopped.out) == []
        run(stopped)
        assert len(continued(stopped.out)) == 1
        assert f"(epoch {validations + 1})" in continued(stopped.out)[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    check_same_end(stopped.out, whole.out)
    assert rows(stopped.out, "train") == rows(whole.out, "train")
    assert rows(stopped.out, "val") == rows(whole.out, "val")


def test_an_error_between_steps_saves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path)
    whole = load_job(tmp_path, tmp_path / "whole")
    run(whole)
    failed = load_job(tmp_path, tmp_path / "failed")
    read = PackedLoader.read

    def failing(self: PackedLoader, epoch: int, i: int) -> Any:
        if (epoch, i) == (1, 3):
            raise DataError("a shard is gone")
        return read(self, epoch, i)

    with monkeypatch.context() as patch:
        patch.setattr(PackedLoader, "read", failing)
        with pytest.raises(DataError, match="a shard is gone"):
            run(failed)
    per_epoch = summary(whole.out)["train/steps"] // 2
    assert load_checkpoint(failed.out / "checkpoints" / "last.ckpt")["global_step"] == per_epoch + 3
    run(failed)
    check_same_end(failed.out, whole.out)


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1})
    run(job)
    before, weights_before = summary(job.out), weights(job.out)
    (job.out / "summary.json").unlink()
    shutil.rmtree(job.out / "drafter")
    lines = len((job.out / "metrics.jsonl").read_text().splitlines())
    run(job)
    assert summary(job.out) == before
    assert same(weights(job.out), weights_before)
    assert (job.out / "drafter" / "model.safetensors").exists()
    assert len((job.out / "metrics.jsonl").read_text().splitlines()) == lines + 1  # the note on the data


def test_signal_before_training_ends_at_once(tmp_path: Path) -> None:
    stop = StopSignal()
    with pytest.raises(Interrupted, match="SIGTERM"):
        stop._handle(signal.SIGTERM, None)
    stop = StopSignal()
    stop.graceful = True
    stop._handle(signal.SIGINT, None)
    stop._handle(signal.SIGTERM, None)
    assert stop.requested
    with pytest.raises(Interrupted):
        stop._handle(signal.SIGINT, None)
