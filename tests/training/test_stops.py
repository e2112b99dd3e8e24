"""A training whose figures are no numbers any more stops, keeps nothing of that, and says what goes on from where."""

from pathlib import Path
from typing import Any

import pytest
from tests.training.made import load_job, make_job
from tests.training.running import rows, run, summary

from eagle3.data.dataset import SequenceDataset
from eagle3.errors import TrainingError
from eagle3.training.checkpoints import load_checkpoint

HELD_OUT = list(range(5, 85, 10))
"""Sample ids of every fifth sequence."""


def poison(monkeypatch: pytest.MonkeyPatch, sample: int, wrong: float = float("nan")) -> None:
    """Makes the captured states of one sequence something else wherever it is read."""
    batch_of = SequenceDataset.batch

    def poisoned(self: SequenceDataset, chosen: Any, pin: bool = False) -> Any:
        batch = batch_of(self, chosen, pin)
        for n, sample_id in enumerate(batch.sample_ids.tolist()):
            if sample_id == sample:
                batch.states[batch.document == n] = wrong
        return batch

    monkeypatch.setattr(SequenceDataset, "batch", poisoned)


def test_a_held_out_loss_that_is_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1, "tokens_per_batch": 64, "checkpoint_every": 2})
    with monkeypatch.context() as patch:
        poison(patch, sample=35)
        with pytest.raises(TrainingError, match=r"The held-out loss is nan after step (\d+), with samples ") as told:
            run(job)
    text = str(told.value)
    named = {int(i) for i in text.split("with samples ")[1].split(".")[0].split(", ")}
    assert 35 in named
    assert named < set(HELD_OUT), "only those of its batch"
    step = load_checkpoint(job.out / "checkpoints" / "last.ckpt")["global_step"]
    assert f"The checkpoint of step {step} is kept: the same command continues from it." in text
    assert [path.name for path in (job.out / "checkpoints").iterdir()] == ["last.ckpt"]
    assert not rows(job.out, "val")
    run(job)  # the states have been mended
    assert summary(job.out)["val/accept_length"] >= 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_weights_that_the_last_step_ruined(tmp_path: Path, epochs: int) -> None:
    make_job(tmp_path)
    trainer = {"epochs": epochs, "max_steps": 1} if epochs == 1 else {"epochs": epochs, "tokens_per_batch": 100_000}
    job = load_job(tmp_path, tmp_path / "out", trainer=trainer, optim={"lr": 1e30})
    with pytest.raises(TrainingError, match=r"norm of the weights became inf in step 1, .*lower optim\.lr") as told:
        run(job)
    assert "No checkpoint was saved before: the same command begins anew." in str(told.value)
    assert not (job.out / "checkpoints").exists()
    assert not (job.out / "drafter").exists()
