"""`eagle3 inspect` of a sweep, of its jobs, its drafters and its comparison: made by the command a user types."""

from pathlib import Path

import pytest
from tests.pipeline.imported_runs import overrides, run, write_place

from eagle3.cli import main


def command(place: Path) -> list[str]:
    paths = (f"paths.artifacts={place}/artifacts", f"paths.runs={place}/runs")
    given = [item for item in overrides(place, *paths) if not item.startswith("drafter.draft_vocab_size")]
    return ["-m", *given, "drafter.draft_vocab_size=64,128,100000"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs that are done, and one whose draft vocabulary is larger than the target's."""
    place = tmp_path_factory.mktemp("sweep")
    write_place(place, 12)
    code, output = run(command(place), place)
    assert code == 1, output
    (folder,) = (place / "runs" / "tiny").iterdir()
    return folder


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", str(path)]) == 0
    return capsys.readouterr().out


def test_a_sweep_is_said_to_be_one(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = inspected(sweep, capsys)
    for text in (
        ": a sweep\n",
        "state         2 done, 1 failed",
        "job 1         done, drafter.draft_vocab_size=128",
        "job 2         failed, drafter.draft_vocab_size=100000: drafter.draft_vocab_size=100000: more than",
        str(sweep / "sweep.md"),
        "the same command runs what is missing or failed",
        f"eagle3 compare {sweep}",
    ):
        assert text in told, text
    told = inspected(sweep / "comparison", capsys)
    assert ": a comparison of runs\n" in told
    assert f"the sweep {sweep}" in told


def test_its_runs_and_drafters_say_the_command_that_was_typed(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = next((sweep / "1").resolve().parents[3].glob("artifacts/train/*/checkpoints/best.ckpt"))
    for path in (sweep / "1", sweep / "1" / "drafter", saved):
        told = inspected(path, capsys)
        (command,) = (line for line in told.splitlines() if line.lstrip().startswith("command"))
        assert "run.py -m " in command
        assert "drafter.draft_vocab_size=64,128,100000" in command
        assert "# job " in command
        assert "job.py" not in told
    told = inspected(sweep / "2", capsys)
    assert "state         failed" in told
    assert "why           drafter.draft_vocab_size=100000" in told


def test_a_damaged_record_is_named_and_the_same_command_mends_it(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = sweep / "0" / "job.json"
    before = record.read_text()
    record.write_text(before[: len(before) // 2])
    told = inspected(sweep, capsys)
    for text in (
        "state         1 damaged, 1 done, 1 failed",
        f"job 0         damaged, drafter.draft_vocab_size=64: {record} can't be read; the same command writes it again",
        "job 1         done, drafter.draft_vocab_size=128",
    ):
        assert text in told, text
    place = sweep.parents[2]
    assert run(command(place), place)[0] == 1
    assert "state         2 done, 1 failed" in inspected(sweep, capsys)
