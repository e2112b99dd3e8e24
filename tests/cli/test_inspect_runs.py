"""What `eagle3 inspect` says of a run that did not finish in its folder: what is true now, not when it ended."""

import json
from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.metrics import JsonlReporter
from eagle3.pipeline.artifacts import DONE, LOCK, locked

STAGES = ("prepare", "extract", "train", "evaluate")
CONTINUES = "not finished: the same command continues it, in a run folder of its own"


def made_run(root: Path, name: str, until: str = "report", done: bool = False, drafter: str = "d1") -> Path:
    """A run's folder; its stages are shared with those of the same drafter."""
    run = root / "runs" / "mine" / name
    (run / "snapshot").mkdir(parents=True)
    (run / "config.yaml").write_text(f"until: {until}\n")
    folders = {stage: root / "artifacts" / stage / drafter for stage in STAGES}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    artifacts = {stage: str(folder) for stage, folder in folders.items()}
    (run / "provenance.json").write_text(json.dumps({"command": "run.py", "artifacts": artifacts}))
    if done:
        (run / DONE).touch()
    return run


def state(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(path.parent.rglob("*"))
    assert main(["inspect", str(path)]) == 0
    assert sorted(path.parent.rglob("*")) == before, "looking changes nothing"
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  state ")]
    return line.split(maxsplit=1)[1]


def test_killed_and_continued_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = made_run(tmp_path, "1")
    assert state(killed, capsys) == CONTINUES
    made_run(tmp_path, "2", drafter="another", done=True)
    made_run(tmp_path, "3", until="train", done=True)
    made_run(tmp_path, "4")
    assert state(killed, capsys) == CONTINUES, "none of them has finished that"
    (tmp_path / "artifacts" / "evaluate" / "d1" / DONE).touch()
    assert "the same command writes their report" in state(killed, capsys)
    finished = made_run(tmp_path, "5", done=True)
    assert state(killed, capsys) == f"stopped here; {finished} has finished what it was to make"
    assert state(finished, capsys) == "finished"
    (killed / "failure.txt").write_text("no room")
    assert state(killed, capsys) == f"failed here; {finished} has finished what it was to make"


def test_runs_that_were_moved_together_with_their_artifacts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a repository is, and without them."""
    killed, finished = (made_run(tmp_path / "then", name, done=name == "2") for name in "12")
    for stage in STAGES:
        (tmp_path / "then" / "artifacts" / stage / "d1" / DONE).touch()
    there = (tmp_path / "then").rename(tmp_path / "now")
    killed, finished = (there / run.relative_to(tmp_path / "then") for run in (killed, finished))
    assert state(killed, capsys) == f"stopped here; {finished} has finished what it was to make"
    assert main(["inspect", str(finished)]) == 0
    assert f"{there / 'artifacts' / 'train' / 'd1'} (finished)" in capsys.readouterr().out
    alone = killed.rename(tmp_path / "alone")
    assert main(["inspect", str(alone)]) == 0
    assert f"{tmp_path / 'then' / 'artifacts' / 'train' / 'd1'} (not there)" in capsys.readouterr().out


def test_one_that_was_to_end_earlier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed = made_run(tmp_path, "1", until="train")
    whole = made_run(tmp_path, "2", done=True)
    assert state(killed, capsys) == CONTINUES
    (tmp_path / "artifacts" / "train" / "d1" / DONE).touch()
    assert "its stages are" in state(killed, capsys)
    (whole / "config.yaml").write_text("until: train\n")
    assert state(killed, capsys) == f"stopped here; {whole} has finished what it was to make"


def test_one_that_is_being_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path, "1")
    training = tmp_path / "artifacts" / "train" / "d1"
    (training / "job.json").write_text("{}")
    with locked(training, JsonlReporter(tmp_path / "said.jsonl")):
        assert state(run, capsys).startswith("train is being made now (process ")
        assert state(training, capsys).startswith("being made now (process ")
    assert (training / LOCK).is_file()
    assert state(run, capsys) == CONTINUES
    assert state(training, capsys) == "not finished: the same command continues it"


def test_stopped_before_anything_was_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path, "1")
    (run / "provenance.json").write_text('{"command": "run.py"}')
    assert state(run, capsys) == CONTINUES
    (run / "config.yaml").write_text("until: [\n")
    assert state(run, capsys) == CONTINUES


def test_a_job_of_a_sweep_is_run_again_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path, "0")
    (run / "job.json").write_text(json.dumps({"number": 0, "overrides": [], "status": "running"}))
    assert state(run, capsys) == "not finished: its sweep's command runs it again, in this folder"
    with locked(run, JsonlReporter(tmp_path / "said.jsonl")):
        assert state(run, capsys) == "being run now, by its sweep"
