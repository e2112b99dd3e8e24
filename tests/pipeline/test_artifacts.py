"""Fingerprints, locks, and what a folder says of itself."""

import errno
import fcntl
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.drafter.targets import make_target
from tests.training.made import config_of

from eagle3.config import load
from eagle3.errors import Eagle3Error
from eagle3.files.json_file import read_json
from eagle3.pipeline.artifacts import Artifact, copy_folder, fingerprint, held, locked
from eagle3.pipeline.reuse import as_left
from eagle3.server.process import ChildTree


class Notes:
    """A reporter that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def progress(self, done: float, total: float, **fields: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_setting_that_could_not_be_served_is_tried_again(tmp_path: Path) -> None:
    """The other figures are there, and what was measured is kept."""
    cfg = load(config_of())
    target = make_target(tmp_path / "target")
    artifact = Artifact("evaluate", tmp_path / "e", {})
    artifact.prepare()
    (artifact.folder / "summary.json").write_text('{"serve/speedup": 1.5}')
    artifact.finish()
    assert as_left(artifact, cfg, target, Notes()) is None
    (artifact.folder / "summary.json").write_text('{"serve/speedup": 1.5, "serve/failed": "s5k1d6"}')
    assert as_left(artifact, cfg, target, Notes()) == f"{artifact.folder}: s5k1d6 could not be measured then"


def test_a_fingerprint_depends_on_content_not_on_order() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_done_only_after_finish(tmp_path: Path) -> None:
    artifact = Artifact("train", tmp_path / "x", {"a": 1})
    artifact.prepare()
    assert not artifact.done
    assert read_json(artifact.folder / "inputs.json") == {"a": 1}
    artifact.finish()
    assert artifact.done


def test_a_run_folder_that_is_used_again(tmp_path: Path) -> None:
    """Its drafter is a link to an artifact's: another one takes its place, and the artifact stays what it was."""
    for name in ("one", "two"):
        (tmp_path / name / "snapshot").mkdir(parents=True)
        (tmp_path / name / "weights").write_text(name)
        (tmp_path / name / "snapshot" / "file").write_text(name)
    for name in ("one", "one", "two"):
        copy_folder(tmp_path / name, tmp_path / "run")
        assert (tmp_path / "run" / "weights").read_text() == name
    assert (tmp_path / "one" / "weights").read_text() == (tmp_path / "one" / "snapshot" / "file").read_text() == "one"


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Eagle3Error, match=r"paths\.artifacts"):
        Artifact("train", tmp_path / "file" / "x", {}).prepare()


def test_a_full_disk_wants_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(Eagle3Error, match=r"\(No space left on device\); make room, or choose another place"):
        Artifact("train", tmp_path / "x", {}).prepare()


def test_broken_json_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(Eagle3Error, match=r"x\.json"):
        read_json(tmp_path / "x.json")


def _hold(folder: Path, held: Any, release: Any) -> None:
    with locked(folder, Notes()):
        held.set()
        release.wait(30)


def test_a_second_owner_waits_and_a_dead_one_is_taken_over(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    owner = context.Process(target=_hold, args=(tmp_path, held, release))
    owner.start()
    assert held.wait(60)
    owner.kill()  # a dead owner holds nothing
    owner.join()
    notes = Notes()
    began = time.monotonic()
    with locked(tmp_path, notes):
        assert time.monotonic() - began < 30
    assert notes.notes == []


CHILD = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(2)
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1], "began").touch()
time.sleep(60)
"""
"""Like a trainer: asked to stop, it saves first."""


def _train(folder: Path) -> None:
    with locked(folder, Notes()):
        argv = [sys.executable, "-c", CHILD, str(folder)]
        ChildTree(argv, env=os.environ, log=folder / "log", keep_open=held()).wait()


def test_a_killed_owners_child_is_waited_for(tmp_path: Path) -> None:
    owner = multiprocessing.get_context("spawn").Process(target=_train, args=(tmp_path,))
    owner.start()
    while not (tmp_path / "began").exists():
        assert owner.is_alive()
        time.sleep(0.05)
    owner.kill()
    owner.join()
    notes = Notes()
    with locked(tmp_path, notes):
        assert (tmp_path / "saved").exists()
    (note,) = notes.notes
    assert note.startswith(f"another run is making {tmp_path}; waiting for it (process ")
    assert held() == ()


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flock as an NFS client without its lock service answers: there is none here, so the answer is made up."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    says = r"LOCK: this disk has no file locks \(No locks available\)"
    with pytest.raises(Eagle3Error, match=says), locked(tmp_path, Notes()):
        pass
