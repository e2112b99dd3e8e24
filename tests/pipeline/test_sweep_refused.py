"""A sweep whose folder the disk refuses to write: one line, the table of what is known, exit code 1, no traceback."""

from pathlib import Path

import pytest
from tests.pipeline.imported_runs import overrides, run, write_place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    write_place(folder, 12)
    return folder


def refused(place: Path, name: str, at: str) -> tuple[int, list[str]]:
    """Exit code and lines of a sweep that finds a folder where it writes the file `at`."""
    folder = place / name
    (folder / at / "taken").mkdir(parents=True)
    given = [*overrides(place, f"name={name}", "tracking=disabled"), f"hydra.sweep.dir={folder}", "seed=0,1"]
    code, output = run(["-m", *given], place)
    assert "Traceback" not in output
    assert "Error executing job" not in output
    assert "Warning" not in output
    return code, output.splitlines()


def test_what_a_job_writes(place: Path) -> None:
    code, lines = refused(place, "job", "0/config.yaml")
    assert code == 1
    (error,) = (line for line in lines if line.startswith("error: "))
    assert "config.yaml: Is a directory" in error
    assert [line.split()[:3] for line in lines if "seed=" in line and "job" not in line] == [
        ["0", "seed=0", "failed"],
        ["1", "seed=1", "not"],
    ]
    assert any(line.startswith("job 0 failed: ") and "Is a directory" in line for line in lines)


def test_the_record_of_a_job(place: Path) -> None:
    code, lines = refused(place, "record", "0/job.json.new")
    assert code == 1
    assert any(line.startswith("job 0 failed: ") and "Is a directory" in line for line in lines)


def test_its_own_plan(place: Path) -> None:
    code, lines = refused(place, "plan", "sweep.json.new")
    assert code == 1
    assert lines == [f"error: paths.runs: {place / 'plan'} can't be written (Is a directory); give another folder"]
