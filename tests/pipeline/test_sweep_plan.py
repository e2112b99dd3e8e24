"""`mode=plan` of a sweep, by the command a user types: starts nothing and leaves nothing."""

from pathlib import Path

import pytest
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import overrides, run

from eagle3.config import PROJECT


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    write_chat_model(folder / "model")
    write_conversations(folder / "chat.jsonl", 4)
    return folder


def plan(place: Path, sweep: str, *more: str) -> tuple[int, str]:
    given = [item for item in overrides(place) if not item.startswith("layers.")]
    search = ["--config-dir", str(PROJECT / "sweeps"), "--config-name", sweep]
    return run([*search, *given, "mode=plan", *more], place)


def test_what_is_shared_is_said_once_and_each_job_by_its_number(place: Path) -> None:
    code, output = plan(place, "layers", "layers.boundaries=[1,3,5],[2,4,5]", "seed=0,1", "dataset.tokens=1000")
    assert code == 0, output
    for text in (
        "plan of tiny: 4 jobs, nothing is started",
        "varied    layers.boundaries: [1,3,5], [2,4,5]",
        "extract   1 made, for 4 jobs",
        "train     4 made, for 4 jobs",
        "extract: made by job 0, for 4 jobs",
        "job 3: layers.boundaries=[2,4,5] seed=1",
        "of job 0: prepare, extract",
    ):
        assert text in output, text
    assert output.count("sglang") == 1, "the server's command"
    assert "of hidden states to be written; free there: " in output
    assert not list((place / "runs").iterdir())
    assert not (place / "artifacts").exists()


def test_a_job_that_cant_run_is_named_and_the_others_are_planned(place: Path) -> None:
    choices = "layers.boundaries=[1,3,5],[1,9,20],[2,4,5]"
    code, output = plan(place, "layers", choices, "seed=0")
    assert code == 2, output
    assert "error: job 1: layers.boundaries: [9, 20] outside 1..5" in output
    assert "train     2 made, for 2 jobs" in output
    assert "boundaries [1, 2, 3, 4, 5] and the final state" in output
    code, output = plan(place, "layers", "seed=0", f"name={'x' * 256}")
    assert (code, output) == (2, "error: name: 256 bytes are too many for a folder's name; at most 255\n")
    code, output = plan(place, "layers", "seed=0", f"paths.runs={place / ('x' * 256)}")
    assert code == 1, output
    assert "File name too long; runs are written to paths.runs" in output
    assert "Traceback" not in output
    code, output = plan(place, "layers", "layers.boundaries=[1,3,5],[1,9]", "seed=0,1", "layers.capture=[1,3,5]")
    assert code == 2, output
    assert "error: job 2, 3: layers.boundaries: [9] outside 1..5" in output


def test_a_measurement_of_profiles(place: Path) -> None:
    code, output = plan(
        place, "nccl_x_layers", "layers.boundaries=[1,3,5],[2,4,5]", "seed=0", "bench.prefill_tokens=64"
    )
    assert code == 0, output
    assert "bench     4 made, for 8 jobs" in output
    assert f"--model-path {place / 'model'} " in output
    assert "extract   1 made, for 8 jobs" in output
    assert "train     2 made, for 8 jobs" in output


def test_a_failure_of_all_jobs_is_told_briefly_and_fail_fast_stops(place: Path) -> None:
    tiny = [*overrides(place), "name=fails", "tracking=disabled", "drafter.draft_vocab_size=100000"]
    code, output = run(["-m", *tiny, "seed=0,1"], place)
    assert code == 1, output
    assert "job 0, 1 failed: drafter.draft_vocab_size=100000: more than" in output
    assert output.count("more than the target's vocabulary") == 3, "by each job as it fails, and once below the table"
    code, output = run(["-m", *tiny, "seed=0,1", "sweep.fail_fast=true"], place)
    assert code == 1, output
    assert "Error executing job" not in output
    assert "job 0: seed=0" in output
    assert "job 1: seed=1" not in output
    code, output = run(["-m", *tiny, "name=a/b", "seed=0,1"], place)
    assert code == 2, output
    assert not (place / "runs" / "a").exists()


def test_a_place_that_cant_be_written_is_told_and_nothing_is_made(place: Path) -> None:
    """By the plan of one run and of a sweep, with a real run's words and exit code."""
    (place / "runs").mkdir(exist_ok=True)
    there, before = place / "chat.jsonl", sorted(place.rglob("*"))  # a file: not even root makes a folder below it
    says = f"paths.artifacts: {there} can't be written (Not a directory); make it writable, or choose another place"
    given = [*overrides(place), f"paths.artifacts={there}"]
    code, output = run([*given, "mode=plan"], place)
    assert code == 1, output
    assert f"error: {says}" in output
    assert "train: made" in output
    code, output = plan(place, "layers", "layers.boundaries=[1,3,5],[2,4,5]", "seed=0", f"paths.artifacts={there}/x")
    assert code == 1, output
    assert f"error: job 0, 1: {says}" in output
    assert "train     2 made, for 2 jobs" in output
    assert sorted(place.rglob("*")) == before
    code, output = run(given, place)
    assert code == 1, output
    assert f"error: paths.artifacts: {there}/prepare/" in output
    assert says.partition(" can't")[2] in output
