"""The training child as the pipeline runs it: exit codes, one line for the user, and no harm from kill -9."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.training.made import load_job, make_job, write_job
from tests.training.running import rows, run, same, summary, weights

from eagle3.errors import TrainingError
from eagle3.metrics import JsonlReporter, Tail
from eagle3.pipeline.child import run_child
from eagle3.training.checkpoints import load_checkpoint

TRAINER: dict[str, Any] = {"epochs": 8, "tokens_per_batch": 64, "checkpoint_every": 1}


def start(job: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "eagle3.training.main", str(job)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(child: subprocess.Popen[str], tail: Tail, step: int) -> None:
    while child.poll() is None:
        if any((row.get("step") or 0) >= step for row in tail.rows() if "values" in row):
            return
        time.sleep(0.002)
    raise AssertionError(f"the child ended before step {step}: {child.communicate()}")


def test_kill_at_random_steps_ends_with_the_same_weights(tmp_path: Path) -> None:
    make_job(tmp_path)
    whole = load_job(tmp_path, tmp_path / "whole", trainer=TRAINER)
    run(whole)
    total = int(summary(whole.out)["train/steps"])

    killed = tmp_path / "killed"
    job = write_job(tmp_path, killed, trainer=TRAINER)
    tail = Tail(killed / "metrics.jsonl")
    seed = time.time_ns()
    # A step is told before its checkpoint is written: the first is killed before there is one, or just after.
    steps, at = [1, random.Random(seed).randrange(2, total - 20)], 0
    for step in steps:
        with start(job) as child:
            wait_for_step(child, tail, step)
            child.kill()
        last = killed / "checkpoints" / "last.ckpt"
        at = load_checkpoint(last)["global_step"] if last.exists() else 0
        assert step - 1 <= at < total, f"seed {seed}"
    with start(job) as child:
        output, errors = child.communicate()
    assert child.returncode == 0, errors
    assert same(weights(killed), weights(whole.out)), f"seed {seed}"
    assert same(weights(killed, "best.ckpt"), weights(whole.out, "best.ckpt")), f"seed {seed}"
    assert summary(killed) == summary(whole.out)
    assert rows(killed, "val") == rows(whole.out, "val")
    assert "Lightning" not in output + errors
    assert output.count(f"goes on from step {at} of {total} (epoch ") == output.count("\n") == 1


def test_the_row_after_a_torn_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlReporter(path).log({"train/loss": 1.0}, 1)
    with path.open("a") as file:
        file.write('{"time": 1, "val')
    JsonlReporter(path).log({"train/loss": 2.0}, 2)
    assert [row["step"] for row in Tail(path).rows()] == [1, 2]


def test_sigterm_saves_and_exits_130(tmp_path: Path) -> None:
    make_job(tmp_path)
    out = tmp_path / "stopped"
    job = write_job(tmp_path, out, trainer=TRAINER | {"checkpoint_every": 1000})
    with start(job) as child:
        wait_for_step(child, Tail(out / "metrics.jsonl"), 5)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert errors.startswith("error: Interrupted; ")
    assert errors.count("\n") == 1
    assert load_checkpoint(out / "checkpoints" / "last.ckpt")["global_step"] >= 5
    assert not (out / "summary.json").exists()


def test_a_wrong_job_is_told_in_one_line(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    raw = json.loads(job.read_text())
    raw["config"]["optim"]["lr"] = -1.0
    job.write_text(json.dumps(raw))
    with start(job) as child:
        _, errors = child.communicate()
    assert child.returncode == 2
    assert errors.startswith("error: optim.lr: -1.0 ")
    assert errors.count("\n") == 1


def test_prompts_of_another_dataset_are_told_in_one_line(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "prompts" / "prompts.safetensors").unlink()
    with start(job) as child:
        _, errors = child.communicate()
    assert child.returncode == 1
    assert errors.startswith("error: ")
    assert errors.endswith("Run the prepare stage first.\n")
    assert errors.count("\n") == 1


class Heard:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int | None] = []
        self.notes: list[str] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.steps.append(step)

    def progress(self, done: float, total: float, **fields: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("", "killed (SIGKILL); was memory short?; it has said nothing\n(log: "),
        ("boom", "short?; the end of its log:\nboom\n(log: "),
    ],
)
def test_one_that_is_killed_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    words = f"print({says!r}, flush=True)" if says else ""
    (tmp_path / "quits.py").write_text(f"import os, signal\n{words}\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TrainingError) as raised:
        run_child("quits", {}, tmp_path, tmp_path / "train.log", Heard())
    assert told in str(raised.value)


def test_what_an_earlier_start_said_is_not_said_as_new(tmp_path: Path) -> None:
    """Its figures are passed on, for W&B; its notes are not."""
    job = json.loads(make_job(tmp_path).read_text())
    before = JsonlReporter(tmp_path / "out" / "metrics.jsonl")
    before.note("epoch 1: held-out accept length 9.999")
    before.log({"train/loss": 1.0}, 1)
    before.close()
    heard = Heard()
    job["config"]["trainer"]["epochs"] = 1
    run_child("eagle3.training.main", job, tmp_path / "out", tmp_path / "train.log", heard)
    assert heard.notes[0] == f"goes on in {tmp_path / 'out'}; what was reported before is in its metrics.jsonl"
    assert not any("9.999" in note for note in heard.notes)
    assert heard.steps[0] == 1
