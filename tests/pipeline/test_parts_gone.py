"""Parts of a training that are removed or cut short: made again by the same command, or told with what helps."""

import os
import shutil
from pathlib import Path

import pytest
from tests.pipeline.imported_runs import latest, overrides, run, write_place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_place(folder)
    code, output = train(folder)
    assert code == 0, output
    return folder


def train(place: Path, *more: str) -> tuple[int, str]:
    return run(overrides(place, "until=train", "tracking=disabled", "trainer.epochs=1", *more), place)


@pytest.fixture
def artifact(place: Path) -> Path:
    """The training, whole again for each test."""
    (folder,) = (place / "artifacts" / "train").iterdir()
    kept = place / "kept"
    if not kept.exists():
        shutil.copytree(folder, kept)
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    return folder


def test_a_drafter_that_was_removed_is_exported_again(place: Path, artifact: Path) -> None:
    before = (artifact / "drafter" / "model.safetensors").read_bytes()
    shutil.rmtree(artifact / "drafter")
    code, output = train(place)
    assert code == 0, output
    assert "drafter/config.json is gone" in output.replace("\n", "")
    assert (artifact / "drafter" / "model.safetensors").read_bytes() == before
    assert (latest(place) / "drafter" / "model.safetensors").read_bytes() == before


def test_a_drafter_that_was_written_into_is_exported_again(place: Path, artifact: Path) -> None:
    """Also by what was written into a run's, which is a link to it."""
    weights = artifact / "drafter" / "model.safetensors"
    before = weights.read_bytes()
    with weights.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"\xff" * 64)
    code, output = train(place)
    assert code == 0, output
    assert f"{artifact / 'drafter'} is not what was exported" in output.replace("\n", "")
    assert weights.read_bytes() == before
    assert (latest(place) / "drafter" / "model.safetensors").read_bytes() == before


def test_without_its_checkpoints_a_finished_training_is_reused(place: Path, artifact: Path) -> None:
    shutil.rmtree(artifact / "checkpoints")
    code, output = train(place)
    assert code == 0, output
    assert not (artifact / "checkpoints").exists()


@pytest.mark.parametrize("name", ["best.ckpt", "last.ckpt"])
def test_what_the_message_says_helps(place: Path, artifact: Path, name: str) -> None:
    """The best is gone, or the last is cut short."""
    before = (artifact / "drafter" / "model.safetensors").read_bytes()
    (artifact / "DONE").unlink()
    path = artifact / "checkpoints" / name
    if name == "best.ckpt":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:5000])
    code, output = train(place)
    assert code == 1
    assert f"delete {path.parent}: the same command then trains from the first step" in output
    assert "the same command continues" not in output
    shutil.rmtree(path.parent)
    code, output = train(place)
    assert code == 0, output
    assert (artifact / "drafter" / "model.safetensors").read_bytes() == before


def test_more_ranks_than_sequences_are_refused_before_any_is_started(place: Path) -> None:
    code, output = train(place, "trainer.devices=50")
    assert code == 2, output
    assert "trainer.devices: 50 ranks" in output
    assert len(list((place / "artifacts" / "train").iterdir())) == 1
