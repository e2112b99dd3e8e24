"""A file that is whole or not there, and the words for a disk that refuses, with each library that writes files."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy
from safetensors import torch as safetensors_torch
from tests.training.made import load_job, make_job
from tests.training.running import run

from eagle3.errors import DataError, TrainingError
from eagle3.files.whole import whole_file
from eagle3.training.checkpoints import AtomicCheckpoints

Write = Callable[[int, Path], None]


def _by_torch(n: int, path: Path) -> None:
    torch.save(torch.zeros(n), path)


def _by_safetensors(n: int, path: Path) -> None:
    safetensors_torch.save_file({"a": torch.zeros(n)}, path)


def _by_safetensors_of_numpy(n: int, path: Path) -> None:
    safetensors_numpy.save_file({"a": np.zeros(n, np.float32)}, path)


def _by_the_system(n: int, path: Path) -> None:
    path.write_bytes(bytes(4 * n))


WRITERS = [_by_torch, _by_safetensors, _by_safetensors_of_numpy, _by_the_system]


@pytest.fixture
def limited() -> Iterator[None]:
    """No file of this process may be larger than 8 KiB: the system refuses as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", WRITERS)
def test_it_is_there_and_others_may_read_it(tmp_path: Path, write: Write) -> None:
    path, plain = tmp_path / "file", tmp_path / "plain"
    with whole_file(path) as partial:
        write(100, partial)
        assert not path.exists()
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "plain"]


@pytest.mark.parametrize("write", WRITERS)
def test_a_write_that_is_refused_leaves_what_was_there(tmp_path: Path, limited: None, write: Write) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(DataError, match=rf"{path} could not be written: "), whole_file(path) as partial:
        write(100_000, partial)
    assert path.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_in_safetensors_words(tmp_path: Path) -> None:
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(DataError, match="The disk is full"), whole_file(tmp_path / "file"):
        raise SafetensorError(said)


def test_a_checkpoint_names_what_the_system_said_and_not_torchs_own_words(tmp_path: Path, limited: None) -> None:
    with pytest.raises(TrainingError, match=r"last\.ckpt could not be written: File too large.*begins anew") as told:
        AtomicCheckpoints().save_checkpoint({"weights": torch.zeros(100_000)}, tmp_path / "last.ckpt")
    assert "enforce fail" not in str(told.value)


def test_a_mistake_in_the_code_is_not_taken_for_a_disk(tmp_path: Path) -> None:
    with pytest.raises(KeyError), whole_file(tmp_path / "file"):
        raise KeyError("a")


def test_a_training_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out")

    def refuses(*_: Any) -> None:
        raise SafetensorError("I/O error: File too large (os error 27)")

    monkeypatch.setattr("eagle3.training.run.save_file", refuses)
    with pytest.raises(DataError, match=r"draft_vocabulary\.safetensors could not be written: File too large"):
        run(job)


KILLED = """
import os, sys
from pathlib import Path
from eagle3.files.whole import whole_file
with whole_file(Path(sys.argv[1])) as partial:
    partial.write_bytes(b"half")
    partial.with_name(".tmpA1b2C3").write_bytes(b"half")  # safetensors' own, whose name is another one each time
    os._exit(9)
"""


def test_a_kill_leaves_nothing_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert not path.exists()
    with whole_file(path) as partial:
        _by_safetensors(100, partial)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
