"""An import that goes on: with the files as they are by then, and with everything that it has."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.exchange_cases import LENGTHS, Silent, back, content, require_equal, there, write_states

from eagle3.data.exchange.importing import GONE
from eagle3.data.manifest import Manifest
from eagle3.data.shards import HiddenStates
from eagle3.data.verify import verify
from eagle3.errors import ConfigError, DataError
from eagle3.target.info import TargetInfo

OWN = [1, 3]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, target: TargetInfo) -> HiddenStates:
    return write_states(tmp_path_factory.mktemp("own") / "d", target, OWN, LENGTHS)


@pytest.fixture
def foreign(tmp_path: Path, own: HiddenStates) -> Path:
    return there(own, tmp_path / "there", "specforge")


def file_of(foreign: Path, i: int) -> Path:
    return foreign / "rows_0-5000" / f"data_{i}.ckpt"


def scale(path: Path, by: float) -> None:
    """The same sequence with other states."""
    stored = torch.load(path, weights_only=True)
    stored["aux_hidden_state"] *= by
    torch.save(stored, path)


class Counted(Silent):
    """Stops at a number of sequences; says how many were there when it began."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at, self.began, self.total = stop_at, -1, 0

    def progress(self, done: float, total: float, **fields: Any) -> None:
        if "gb_per_s" in fields:
            self.began = int(done) if self.began < 0 else self.began
            if self.stop_at is not None and done >= self.stop_at:
                raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3.data.exchange.pace.PERIOD_S", 0.0)


@pytest.mark.parametrize("first", [0, 3, 5])
def test_a_damaged_file_is_taken_away_and_the_same_command_continues(tmp_path, target, own, foreign, first):
    wrong = file_of(foreign, first)
    stored = torch.load(wrong, weights_only=True)
    torch.save({**stored, "aux_hidden_state": torch.zeros_like(stored["aux_hidden_state"])}, wrong)
    with pytest.raises(DataError, match=rf"(?s)data_{first}\.ckpt: state 0 of it is 0 throughout, .*take it away") as e:
        back(foreign, tmp_path / "back", "specforge", OWN, target)
    assert f"{first} of 6 sequences are imported into {tmp_path / 'back'}; the same command continues" in str(e.value)
    wrong.unlink()
    reporter = Counted()
    got = back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=reporter)
    assert reporter.began == first + 1
    assert f"1 file (rows_0-5000/data_{first}.ckpt) was taken away" in reporter.notes[0]
    assert got.manifest.quarantined == {str(first): GONE}
    assert got.sample_ids.tolist() == [i for i in range(6) if i != first]
    for i, j in enumerate(got.sample_ids.tolist()):
        assert all(torch.equal(a, content(own, j)[name]) for name, a in content(got, i).items())
    assert not list(verify(tmp_path / "back"))


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_an_interrupted_import_keeps_what_it_has_and_says_so(tmp_path, target, own, foreign, stop_at):
    stopping, reporter = Counted(stop_at), Counted()
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=stopping)
    assert stopping.notes == [
        f"{stop_at} of 6 sequences are imported into {tmp_path / 'back'}; the same command continues."
    ]
    got = back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=reporter)
    assert reporter.notes == [f"{stop_at} of 6 sequences are there already"]
    assert reporter.began == stop_at
    require_equal(own, got)


@pytest.mark.parametrize(("stop_at", "complete"), [(2, False), (5, False), (None, True)])
def test_a_file_that_was_made_again_is_imported_again_and_nothing_else(
    tmp_path, target, own, foreign, stop_at, complete
):
    first = Counted(stop_at)
    if complete:
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=first)
    else:
        with pytest.raises(KeyboardInterrupt):
            back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=first)
    scale(file_of(foreign, 1), 2.0)
    for again in (True, False):  # the second time it is known
        reporter = Counted()
        got = back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=reporter)
        assert reporter.began == (6 if not again else (6 if complete else stop_at) - 1)
        assert any("data_1.ckpt) was changed since the import began" in note for note in reporter.notes) == again
    for i in range(6):
        factor = 2.0 if i == 1 else 1.0
        assert torch.equal(content(got, i)["boundary.1"], content(own, i)["boundary.1"] * factor)
        assert torch.equal(content(got, i)["final"], content(own, i)["final"])
    assert not list(verify(tmp_path / "back"))


def test_a_file_that_is_gone_after_its_turn_leaves_its_sequence(tmp_path, target, own, foreign):
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=Counted(3))
    file_of(foreign, 0).unlink()
    require_equal(own, back(foreign, tmp_path / "back", "specforge", OWN, target))


def test_a_file_that_is_back_is_imported(tmp_path, target, own, foreign):
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=Counted(1))
    shutil.move(file_of(foreign, 4), tmp_path / "kept")
    assert len(back(foreign, tmp_path / "back", "specforge", OWN, target)) == 5
    shutil.move(tmp_path / "kept", file_of(foreign, 4))
    got = back(foreign, tmp_path / "back", "specforge", OWN, target)
    require_equal(own, got)
    assert not got.manifest.quarantined
    assert not list(verify(tmp_path / "back"))


def test_files_that_were_added_are_named(tmp_path, target, foreign):
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=Counted(1))
    shutil.copy(file_of(foreign, 4), file_of(foreign, 2).with_name("data_2b.ckpt"))
    with pytest.raises(DataError, match=r"1 file \(rows_0-5000/data_2b\.ckpt\) was not there when the import began"):
        back(foreign, tmp_path / "back", "specforge", OWN, target)


def test_a_file_of_another_sequence_is_refused(tmp_path, target, foreign):
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=Counted(1))
    stored = torch.load(file_of(foreign, 3), weights_only=True)
    torch.save({**stored, "loss_mask": torch.ones_like(stored["loss_mask"])}, file_of(foreign, 3))
    with pytest.raises(DataError, match=r"data_3\.ckpt: its loss mask is another one than when the import began"):
        back(foreign, tmp_path / "back", "specforge", OWN, target)


def test_rows_that_changed_are_refused(tmp_path, target):
    states = write_states(tmp_path / "d", target, [1, 3, 4], LENGTHS)
    foreign = there(states, tmp_path / "there", "speculators")
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "speculators", OWN, target, reporter=Counted(1))
    (table,) = foreign.glob("*.arrow")
    os.utime(table, ns=(0, 0))
    with pytest.raises(DataError, match=r"\.arrow has changed since the import began"):
        back(foreign, tmp_path / "back", "speculators", OWN, target)


def test_a_list_of_files_that_is_torn_is_named(tmp_path, target, foreign):
    back(foreign, tmp_path / "back", "specforge", OWN, target)
    (tmp_path / "back" / "sources.json").write_text('{"files": {"a": 3}}')
    with pytest.raises(DataError, match=r"sources\.json can't be read"):
        back(foreign, tmp_path / "back", "specforge", OWN, target)


@pytest.mark.parametrize("name", ["", "within", "within/deeper"])
def test_nothing_is_written_into_what_is_read(tmp_path, target, own, foreign, name):
    with pytest.raises(ConfigError, match="which is read; give a folder elsewhere"):
        back(foreign, foreign / name, "specforge", OWN, target)
    with pytest.raises(ConfigError, match="which is read; give a folder elsewhere"):
        there(own, own.folder / name, "specforge")
    (tmp_path / "link").symlink_to(own.folder)
    with pytest.raises(ConfigError, match="which is read; give a folder elsewhere"):
        there(own, tmp_path / "link" / "out", "specforge")
    assert not list(verify(own.folder))


def test_an_import_keeps_the_ids_that_files_had(tmp_path, target, own, foreign):
    """Taking one away does not number the others anew."""
    with pytest.raises(KeyboardInterrupt):
        back(foreign, tmp_path / "back", "specforge", OWN, target, reporter=Counted(1))
    ids = json.loads((tmp_path / "back" / "sources.json").read_text())["files"]
    assert {name: entry[0] for name, entry in ids.items()} == {f"rows_0-5000/data_{i}.ckpt": i for i in range(6)}
    file_of(foreign, 2).unlink()
    got = back(foreign, tmp_path / "back", "specforge", OWN, target)
    assert got.sample_ids.tolist() == [0, 1, 3, 4, 5]
    assert torch.equal(content(got, 2)["final"], content(own, 3)["final"])
    assert Manifest.load(tmp_path / "back").sequences == 6
