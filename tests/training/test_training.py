"""What a training learns, normalises, refuses, and keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.made import BOUNDARIES, HIDDEN, VOCAB, load_job, make_job
from tests.training.running import rows, run, summary, weights

from eagle3.data.dataset import SequenceDataset, Split
from eagle3.data.shards import HiddenStates
from eagle3.drafter.check import check_drafter
from eagle3.drafter.load import load_drafter
from eagle3.errors import ConfigError, TrainingError
from eagle3.target.weights import load_embedding
from eagle3.training import checkpoints
from eagle3.training.checkpoints import AtomicCheckpoints, load_checkpoint
from eagle3.training.job import Job
from eagle3.training.machine import Machine
from eagle3.training.module import DrafterModule
from eagle3.training.run import Budget


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3"])
def test_it_learns_and_exports_the_best(tmp_path: Path, dtype: str) -> None:
    make_job(tmp_path, sequences=80, dataset={"dtype": dtype})
    assert HiddenStates(tmp_path / "states").manifest.dtype == dtype
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 12}, optim={"lr": 2e-2})
    run(job)
    found = summary(job.out)
    validations = rows(job.out, "val")
    assert len(validations) == 12
    assert found["val/accept_length"] == max(row["val/accept_length"] for row in validations.values())
    assert found["val/accept_length"] > 2.0
    assert found["train/loss"] < rows(job.out, "train")[1]["train/loss"] / 2
    assert found["train/steps"] == max(validations) == max(rows(job.out, "train"))
    assert found["train/tokens"] == 12 * tokens_trained_on(job)

    assert check_drafter(job.out / "drafter", job.target) == []
    loaded = load_drafter(job.out / "drafter")
    assert loaded.boundaries == BOUNDARIES
    best = {name.removeprefix("drafter."): w for name, w in weights(job.out, "best.ckpt").items()}
    for name, weight in loaded.drafter.state_dict().items():
        assert torch.equal(weight, best[name].bfloat16().float()), name


def test_a_frozen_head_is_the_target_s_and_is_exported_as_it_was(tmp_path: Path) -> None:
    make_job(tmp_path, sequences=80)
    job = load_job(
        tmp_path,
        tmp_path / "out",
        drafter={"train_lm_head": False, "draft_vocab_size": 24},
        trainer={"epochs": 12},
        optim={"lr": 2e-2},
    )
    run(job)
    assert summary(job.out)["val/accept_length"] > 1.5
    chosen = load_file(job.out / "draft_vocabulary.safetensors")["draft_ids"]
    exported = load_file(job.out / "drafter" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(exported, load_embedding(job.target)[chosen])
    assert check_drafter(job.out / "drafter", job.target) == []
    last = load_checkpoint(job.out / "checkpoints" / "last.ckpt")
    moments = {tuple(t.shape) for state in last["optimizer_states"][0]["state"].values() for t in state.values()}
    assert tuple(exported.shape) not in moments
    with pytest.raises(ConfigError, match=r"train_lm_head=false: the target's rows are 16 wide, and .*hidden_size=8"):
        run(load_job(tmp_path, tmp_path / "narrow", drafter={"train_lm_head": False, "hidden_size": 8}))


def test_a_forward_does_not_keep_the_last_step_s_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"accumulate": 2})
    kept: list[tuple[int, bool]] = []
    step = DrafterModule.training_step

    def training_step(self: DrafterModule, batch: Any, batch_idx: int) -> torch.Tensor:
        kept.append((batch_idx, any(p.grad is not None for p in self.drafter.parameters())))
        return step(self, batch, batch_idx)

    monkeypatch.setattr(DrafterModule, "training_step", training_step)
    run(job)
    assert all(has == bool(batch_idx % 2) for batch_idx, has in kept), kept  # the second micro-batch of a step has


def tokens_trained_on(job: Job) -> int:
    states = HiddenStates(job.dataset)
    return int(states.lengths[Split.of(states, job.prompts).train].sum())


def test_progress_and_rows_are_reported(tmp_path: Path) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"log_every": 3})
    run(job)
    reported = [json.loads(line) for line in (job.out / "metrics.jsonl").read_text().splitlines()]
    total = int(summary(job.out)["train/steps"])
    progress = [row["progress"] for row in reported if "progress" in row]
    assert [p["done"] for p in progress] == sorted({0, *range(3, total + 1, 3), total})
    assert all(p["total"] == total and p["unit"] == "steps" for p in progress)
    assert {"loss", "accept_length", "tokens_per_s", "data_wait"} <= progress[1].keys()
    row = next(row["values"] for row in reported if "train/loss" in row.get("values", {}))
    for name in ("lr", "grad_norm", "tokens_per_s", "data_wait", "accept_length", "loss_step_0", "acc_step_2"):
        assert f"train/{name}" in row


def gradients_of(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, **trainer: Any) -> dict[str, torch.Tensor]:
    """Of the first optimiser step."""
    job = load_job(tmp_path, tmp_path / name, trainer={"epochs": 1, "max_steps": 1, **trainer})
    found: dict[str, torch.Tensor] = {}

    def keep(self: DrafterModule, *_: Any, **__: Any) -> None:
        found.update({n: p.grad.clone() for n, p in self.drafter.named_parameters() if p.grad is not None})

    with monkeypatch.context() as patch:
        patch.setattr(DrafterModule, "configure_gradient_clipping", keep)
        run(job)
    return found


def test_the_gradient_does_not_depend_on_how_a_step_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of an epoch in one step: as one micro-batch, or as many that are accumulated."""
    make_job(tmp_path)
    whole = gradients_of(tmp_path, "whole", monkeypatch, tokens_per_batch=100_000)
    parts = gradients_of(tmp_path, "parts", monkeypatch, tokens_per_batch=64, accumulate=100)
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_masters_and_optimiser_stay_fp32_and_the_target_stays_out(tmp_path: Path) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1, "precision": "bf16"})
    run(job)
    last = load_checkpoint(job.out / "checkpoints" / "last.ckpt")
    assert all(name.startswith("drafter.") for name in last["state_dict"])
    tensors = [*last["state_dict"].values()]
    tensors += [t for state in last["optimizer_states"][0]["state"].values() for t in state.values()]
    assert {t.dtype for t in tensors} == {torch.float32}
    assert (VOCAB, HIDDEN) not in {tuple(t.shape) for t in tensors}
    best = load_checkpoint(job.out / "checkpoints" / "best.ckpt")
    assert "optimizer_states" not in best


def test_a_nan_names_the_sequences_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"checkpoint_every": 1})
    batch_of = SequenceDataset.batch
    calls = 0

    def poisoned(self: SequenceDataset, chosen: Any, pin: bool = False) -> Any:
        nonlocal calls
        calls += 1
        batch = batch_of(self, chosen, pin)
        if calls == 4:
            batch.states[:] = float("nan")
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(SequenceDataset, "batch", poisoned)
        with pytest.raises(
            TrainingError, match=r"loss became nan in step 4, with samples (\d+, )*\d+\. .*eagle3 verify"
        ):
            run(job)
    last = load_checkpoint(job.out / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 3
    assert all(w.isfinite().all() for w in last["state_dict"].values())
    run(job)
    assert summary(job.out)["val/accept_length"] >= 1


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpoints().save_checkpoint({"step": 1}, path)

    def full(checkpoint: dict[str, Any], file: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.torch, "save", full)
        with pytest.raises(TrainingError, match=r"disk is full: .*last\.ckpt .*continues"):
            AtomicCheckpoints().save_checkpoint({"step": 2}, path)
    assert load_checkpoint(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    (tmp_path / "last.ckpt.new").write_bytes(b"what kill -9 left")
    assert load_checkpoint(path) == {"step": 1}
    AtomicCheckpoints().save_checkpoint({"step": 3}, path)
    assert load_checkpoint(path) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_full_disk_at_the_first_checkpoint_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.torch, "save", full)
    with pytest.raises(TrainingError, match=r"disk is full: .*No checkpoint was saved before: .* begins anew\."):
        AtomicCheckpoints().save_checkpoint({"step": 1}, tmp_path / "last.ckpt")
    (tmp_path / "last.ckpt").touch()
    with pytest.raises(TrainingError, match=r"best\.ckpt .*continues from the checkpoint before\."):
        AtomicCheckpoints().save_checkpoint({"step": 2}, tmp_path / "best.ckpt")


def test_checkpoints_are_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"evil": Path}, path)
    with pytest.raises(TrainingError, match="can't be read"):
        load_checkpoint(path)
    with pytest.raises(TrainingError, match="can't be read"):
        AtomicCheckpoints().load_checkpoint(path, weights_only=False)


@pytest.mark.parametrize(
    ("batches", "accumulate", "epochs", "max_steps", "expected"),
    [
        (10, 1, 3, None, Budget(3, 30, 10)),
        (10, 4, 3, None, Budget(3, 9, 10)),
        (10, 4, 3, 100, Budget(3, 9, 10)),
        (10, 4, 3, 5, Budget(2, 5, 10)),
        (10, 4, 3, 2, Budget(1, 2, 8)),
        (10, 4, 3, 3, Budget(1, 3, 10)),
    ],
)
def test_budget(batches: int, accumulate: int, epochs: int, max_steps: int | None, expected: Budget) -> None:
    assert Budget.of(batches, accumulate, epochs, max_steps) == expected


def test_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    job = load_job(tmp_path, tmp_path / "out", trainer={"accelerator": "gpu"})
    with pytest.raises(ConfigError, match="finds 0 CUDA devices"):
        Machine.of(job.config.trainer)
    job = load_job(tmp_path, tmp_path / "out", trainer={"devices": 2})
    with pytest.raises(ConfigError, match=r"eagle3\.training\.ranks JOB\.json"):
        Machine.of(job.config.trainer)
