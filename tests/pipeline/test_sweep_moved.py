"""A sweep in a checkout that is moved: what was done there is done, by the same command in the new place."""

from pathlib import Path

from tests.pipeline.imported_runs import copy_project, overrides, run, write_place

from eagle3.config import PROJECT
from eagle3.pipeline.sweep_job import _is_place


def test_a_job_that_is_done_is_so_after_a_move(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "eagle3")
    write_place(project / "data", 12)
    given = ["-m", *overrides(Path("data"), "paths.artifacts=artifacts", "paths.runs=runs")]
    code, output = run(given, project, project)
    assert code == 0, output
    moved = project.rename(tmp_path / "moved")
    code, output = run(given, moved, moved)
    assert code == 0, output
    (folder,) = (moved / "runs" / "tiny").iterdir()
    assert f"job 0: as configured: done before ({folder / '0'})" in output
    assert "reused" not in output, "no job was started"


def test_only_the_project_may_have_moved() -> None:
    here = PROJECT / "artifacts" / "train" / "0123"
    assert _is_place(str(here), here)
    assert _is_place("/old/place/artifacts/train/0123", here)
    for other in ("/old/artifacts/train/4567", "/old/artifacts/evaluate/0123", "train/0123", None):
        assert not _is_place(other, here)
    assert not _is_place("/old/disk/train/0123", Path("/new/disk/train/0123")), "paths.artifacts says which"
