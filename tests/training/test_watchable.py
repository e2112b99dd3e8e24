"""A training as it is watched: on a terminal, in a log file, in W&B; and one that ends with a NaN."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.made import load_job, make_job
from tests.training.running import run
from tests.training.watching import Watched, add_tokenizer, watch

from eagle3.config import PROJECT
from eagle3.data.shards import HiddenStates
from eagle3.errors import TrainingError
from eagle3.metrics import Tail
from eagle3.training import callbacks
from eagle3.training.checkpoints import load_checkpoint
from eagle3.training.finite import FiniteWatch
from eagle3.training.machine import Machine
from eagle3.training.optim import lr_factor
from eagle3.training.run import open_data

CPU = Machine(torch.device("cpu"))
EPOCHS = 10


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    make_job(folder, sequences=60)
    add_tokenizer(folder / "target")
    epoch = len(open_data(load_job(folder, folder / "out"), CPU).train_loader)
    job = load_job(folder, folder / "out", trainer={"epochs": EPOCHS, "log_every": epoch})
    return watch(job, folder / "run")


def test_wandb_has_every_figure(watched: Watched) -> None:
    run, steps = watched.run, watched.job.config.loss.ttt_steps
    assert run.exit_code == 0
    assert "failure" not in run.summary
    rows = [row for row in run.history if "train/loss" in row]
    every = watched.job.config.trainer.log_every
    assert [row["train/step"] for row in rows] == [every * n for n in range(1, EPOCHS + 1)]
    by_step = {f"{name}_step_{k}" for name in ("loss", "acc", "cond_acc") for k in range(steps)}
    shared = {"loss", "accept_length", *by_step}
    own = {"lr", "grad_norm", "tokens", "epoch", "tokens_per_s", "response_tokens_per_s", "tflops_per_s", "data_wait"}
    for row in rows:
        # No mfu and no GPU memory: a CPU has no known peak, and no figure is invented.
        assert {name for name in row if not name.startswith("_")} == {f"train/{n}" for n in shared | own | {"step"}}
    validations = [row for row in run.history if "val/loss" in row]
    assert [row["val/epoch"] for row in validations] == [*range(1, EPOCHS + 1)]
    assert {f"val/{name}" for name in shared} <= validations[0].keys()
    assert run.axes["train/*"] == run.axes["val/*"] == "train/step"


def test_every_figure_is_documented(watched: Watched) -> None:
    page = (PROJECT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {name for row in watched.run.history for name in row if name.startswith(("train/", "val/"))}
    for name in names - {"train/step"} | {"train/mfu", "train/gpu_memory_gib"}:
        assert f"`{re.sub(r'_step_[0-9]+$', '_step_k', name.split('/')[1])}`" in page, name


def test_figures_agree_with_each_other(watched: Watched) -> None:
    optim, loss = watched.job.config.optim, watched.job.config.loss
    rows = [row for row in watched.run.history if "train/loss" in row]
    total = rows[-1]["train/step"]
    for row in rows:
        parts = [row[f"train/loss_step_{k}"] * loss.step_decay**k for k in range(loss.ttt_steps)]
        assert row["train/loss"] == pytest.approx(sum(parts))
        product, length = 1.0, 1.0
        for k in range(loss.ttt_steps):
            product *= row[f"train/cond_acc_step_{k}"]
            length += product
        assert row["train/accept_length"] == pytest.approx(length)
        assert row["train/lr"] == pytest.approx(optim.lr * lr_factor(row["train/step"] - 1, total, optim.warmup_ratio))
        assert row["train/grad_norm"] > 0
        assert 0 < row["train/response_tokens_per_s"] < row["train/tokens_per_s"]
        assert 0 <= row["train/data_wait"] <= 1
        assert row["train/tflops_per_s"] > 0
    data = open_data(watched.job, CPU)
    whole = int(data.train_set.lengths.sum())
    assert [row["train/tokens"] for row in rows] == [whole * n for n in range(1, EPOCHS + 1)]
    # Each row is of one epoch: the ratio of its rates is that of what was counted.
    for row in rows:
        ratio = row["train/response_tokens_per_s"] / row["train/tokens_per_s"]
        assert ratio == pytest.approx(int(data.scored[:, 0].sum()) / whole)


def test_a_terminal_and_a_log_file_show_it(watched: Watched) -> None:
    for shown in (watched.terminal, "\n".join(watched.plain)):
        for text in ("loss ", "accept length ", "tokens/s", "data wait ", "ETA ", " steps", "held-out accept length"):
            assert text in shown, text
    assert "\x1b[" in watched.terminal
    assert "\x1b" not in "".join(watched.plain)
    assert watched.plain[-1].startswith("train: done in ")


def test_mfu_is_of_the_known_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "peak_of", lambda device, precision: 2e12)
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1})
    run(job)
    reported = list(Tail(job.out / "metrics.jsonl").rows())
    rows = [row["values"] for row in reported if "train/loss" in row.get("values", {})]
    assert all(row["train/mfu"] == pytest.approx(row["train/tflops_per_s"] / 2) for row in rows)
    steps = [row["progress"] for row in reported if row.get("progress", {}).get("unit") == "steps"]
    assert all("mfu" in progress for progress in steps if progress["done"])


def test_a_nan_ends_the_run_and_wandb_says_so(tmp_path: Path) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"checkpoint_every": 1})
    fifth = open_data(job, CPU).train_loader.read(0, 4).batch.sample_ids.tolist()
    poison(job.dataset, fifth[0])
    watched = watch(job, tmp_path / "run", expect=TrainingError)

    assert watched.run.exit_code == 1
    told = watched.run.summary["failure"]
    assert told.startswith("TrainingError: The loss became nan in step 5, with samples ")
    assert ", ".join(map(str, sorted(fifth))) in told
    assert watched.run.series("train/step") == [1, 2, 3, 4]
    assert all(math.isfinite(loss) for loss in watched.run.series("train/loss"))
    assert watched.plain[-1].startswith("train: stopped after ")
    last = load_checkpoint(job.out / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 4
    assert all(weight.isfinite().all() for weight in last["state_dict"].values())


def test_where_figures_are_read_seldom_no_save_keeps_a_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where steps go on after the NaN until somebody looks: the next save does."""
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"checkpoint_every": 2, "log_every": 1000})
    third = open_data(job, CPU).train_loader.read(0, 2).batch.sample_ids.tolist()
    poison(job.dataset, third[0])
    done, check = callbacks.Metrics.on_train_batch_end, FiniteWatch.check

    def unread(self: callbacks.Metrics, *args: Any) -> None:
        monkeypatch.setattr(FiniteWatch, "check", lambda self: None)
        done(self, *args)
        monkeypatch.setattr(FiniteWatch, "check", check)

    monkeypatch.setattr(callbacks.Metrics, "on_train_batch_end", unread)
    with pytest.raises(TrainingError, match=rf"became nan in step 3, with samples .*\b{third[0]}\b"):
        run(job)
    last = load_checkpoint(job.out / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 2
    assert all(weight.isfinite().all() for weight in last["state_dict"].values())
    assert not (job.out / "checkpoints" / "best.ckpt").exists()


def poison(dataset: Path, sample: int) -> None:
    """Makes the first captured state of a sequence's first token NaN, in the shard as it lies on the disk."""
    states = HiddenStates(dataset)
    row = int(np.flatnonzero(states.sample_ids.numpy() == sample)[0])
    before = states.read(row, ["boundary.1"])["boundary.1"]
    raw = before[0].view(torch.int16).numpy().tobytes()
    for shard in sorted(dataset.glob("*.safetensors")):
        data = shard.read_bytes()
        if (at := data.find(raw)) >= 0:
            new = torch.full_like(before[0], math.nan).view(torch.int16).numpy().tobytes()
            shard.write_bytes(data[:at] + new + data[at + len(raw) :])
            return
    raise AssertionError("not found")
