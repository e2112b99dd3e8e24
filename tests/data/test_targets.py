"""The target's choices, kept beside a dataset: taken where they are as they were written, else computed again."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.test_prepare import Recorder
from tests.training.made import load_job, make_job
from tests.training.running import run, summary

from eagle3.commands.verify import run_verify
from eagle3.data.dataset import SequenceDataset
from eagle3.data.shards import HiddenStates
from eagle3.data.targets import fill_target_top, require_drafted
from eagle3.errors import TrainingError
from eagle3.target.weights import load_embedding


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_job(tmp_path)
    return tmp_path


def dataset(place: Path) -> SequenceDataset:
    states = HiddenStates(place / "states")
    return SequenceDataset(states, np.arange(len(states)), [1, 3])


def choices(place: Path, notes: Recorder | None = None) -> torch.Tensor:
    """Of all sequences, as a training finds or computes them."""
    whole = dataset(place)
    head = load_embedding(load_job(place, place / "out").target)
    fill_target_top([whole], head, "cpu", notes or Recorder())
    assert whole.target_top is not None
    return whole.target_top


def kept(place: Path) -> Path:
    (path,) = (place / "states").glob("target_top-*")
    return path


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Recorder how many rows are computed, each time that some are."""
    from eagle3.data import targets

    found: list[int] = []
    original = targets.target_argmax

    def counted(final: torch.Tensor, *rest: Any) -> torch.Tensor:
        found.append(len(final))
        return original(final, *rest)

    monkeypatch.setattr(targets, "target_argmax", counted)
    return found


def test_they_are_computed_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = computed(monkeypatch)
    first = choices(place)
    assert len(asked) == 40
    asked.clear()
    assert torch.equal(choices(place), first)
    assert not asked


@pytest.mark.parametrize("wrong", [60000, 7, 0])
def test_what_is_not_as_it_was_written_is_computed_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: int
) -> None:
    """Above the vocabulary, inside of it, and nothing at all."""
    first = choices(place)
    content = np.fromfile(kept(place), np.int32)
    lengths = HiddenStates(place / "states").lengths.numpy()
    content[int((lengths[:20] + 1).sum()) :] = wrong
    content.tofile(kept(place))
    assert run_verify(place / "states") == (1 if wrong else 0)
    assert "sequences don't have their checksum" in capsys.readouterr().out or not wrong
    asked = computed(monkeypatch)
    assert torch.equal(choices(place), first)
    assert len(asked) == 20
    assert run_verify(place / "states") == 0


def test_a_record_in_another_place_is_not_taken(place: Path) -> None:
    first = choices(place)
    path, lengths = kept(place), HiddenStates(place / "states").lengths.tolist()
    begins = np.cumsum([0, *(4 + 4 * length for length in lengths)])
    a, b = next((a, b) for a in range(40) for b in range(a + 1, 40) if lengths[a] == lengths[b])
    content = bytearray(path.read_bytes())
    content[begins[a] : begins[a + 1]] = content[begins[b] : begins[b + 1]]
    path.write_bytes(content)
    assert torch.equal(choices(place), first)


def test_a_full_disk_is_told_and_nothing_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = choices(place)
    kept(place).unlink()
    write, written = os.pwrite, 0

    def full(file: int, data: bytes, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, offset)

    notes = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert torch.equal(choices(place, notes), first)
    (said,) = notes.notes
    assert "The disk is full" in said
    assert str(kept(place)) in said
    assert torch.equal(choices(place), first), "goes on with what there is"


def test_a_file_that_may_not_grow(place: Path) -> None:
    """A real limit of the system on a file's size, in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    notes = Recorder()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1001, hard))
        found = choices(place, notes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(notes.notes) == 1
    assert "File too large" in notes.notes[0]
    assert torch.equal(choices(place), found)


def test_nothing_to_learn_stops(place: Path) -> None:
    whole, notes = dataset(place), Recorder()
    whole.target_top = choices(place)
    used = whole.target_top.unique()
    unused = torch.tensor([*sorted(set(range(48)) - set(used.tolist())), 100], dtype=torch.int64)
    with pytest.raises(TrainingError, match=r"nothing to learn: none of .*draft_vocab_size"):
        require_drafted(whole, whole, unused, notes)
    require_drafted(whole, whole, used.long(), notes)
    assert not notes.notes


def test_held_out_figures_without_meaning_are_told(place: Path) -> None:
    notes = Recorder()
    whole, silent = dataset(place), dataset(place)
    whole.target_top = choices(place)
    silent.target_top = torch.full_like(whole.target_top, 47)
    require_drafted(whole, silent, torch.arange(47), notes)
    assert len(notes.notes) == 1
    assert "held-out figures mean nothing" in notes.notes[0]


def test_a_training_finds_what_another_kept(place: Path) -> None:
    for out in ("one", "two"):
        run(load_job(place, place / out, trainer={"epochs": 1}))
    assert summary(place / "one") == summary(place / "two")
