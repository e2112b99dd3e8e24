"""Where stages keep what they make: folders named by a fingerprint of everything that determines them.

A finished folder holds `DONE`; anything else in it belongs to a stage that was interrupted and will continue.
Nothing here knows about tensors.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from eagle3.errors import Eagle3Error
from eagle3.files.disk import is_full
from eagle3.metrics import Reporter

DONE, LOCK = "DONE", "LOCK"


def fingerprint(inputs: dict[str, Any]) -> str:
    """16 hexadecimal digits of the SHA-256 of the inputs as canonical JSON."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Artifact:
    """A stage's folder, and what determined it."""

    stage: str
    folder: Path
    inputs: dict[str, Any]

    @property
    def done(self) -> bool:
        return (self.folder / DONE).is_file()

    def finish(self) -> None:
        """Marks the folder complete; the last thing that a stage does."""
        (self.folder / DONE).touch()

    def reopen(self) -> None:
        """Takes the mark back: something in the folder is not as it was made."""
        (self.folder / DONE).unlink(missing_ok=True)

    def prepare(self) -> None:
        """Makes the folder and notes in inputs.json what it is made from.

        Raises:
            Eagle3Error: the folder can't be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Not written beside and renamed: two runs may do so at a time, before one of them holds the folder.
            (self.folder / "inputs.json").write_text(
                json.dumps(self.inputs, indent=2, default=str) + "\n", encoding="utf-8"
            )
        except OSError as error:
            raise Eagle3Error(unwritable(self.folder, error)) from error


def unwritable(folder: Path, error: OSError) -> str:
    """What to tell a user whose artifacts can't be written."""
    remedy = "make room" if is_full(error) else "make it writable"
    return (
        f"paths.artifacts: {folder} can't be written ({error.strerror}); "
        f"{remedy}, or choose another place with paths.artifacts=/folder"
    )


@contextmanager
def locked(folder: Path, reporter: Reporter) -> Iterator[None]:
    """Holds the folder for one process; another that wants it waits, and then finds it DONE.

    The lock is the kernel's (flock): it goes when its owner does, however that ends. Children that are given `held()`
    own it too: where this process is killed, whoever waits does not begin before they have ended. On a shared folder
    the file system must carry flock between machines (docs/sweeps.md).

    Raises:
        Eagle3Error: the folder's disk has no locks.
    """
    with (folder / LOCK).open("a+") as file:
        waited = False
        while not _try_lock(file):
            if not waited:
                file.seek(0)
                reporter.note(f"another run is making {folder}; waiting for it ({file.read().strip()})")
            waited = True
            time.sleep(1.0)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
        file.flush()
        _held.append(file.fileno())
        try:
            yield
        finally:
            _held.remove(file.fileno())


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder."""
    try:
        with (folder / LOCK).open("r+") as file:  # who asks leaves nothing behind
            return not _try_lock(file)
    except FileNotFoundError:
        return False


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Eagle3Error(
            f"{file.name}: this disk has no file locks ({error.strerror}), which keep two runs from making the same: "
            "NFS needs its lock service, Lustre to be mounted with `flock`. Or choose other folders: paths.artifacts, "
            "paths.runs"
        ) from error
    return True


_held: list[int] = []


def held() -> tuple[int, ...]:
    """Descriptors of the locks that this process holds, to be kept open by a child that writes into their folders."""
    return tuple(_held)


def copy_folder(source: Path, destination: Path) -> None:
    """Copies a folder's files by hard links where the disk allows it: a large drafter is not stored twice.

    What is there already is replaced, never written into: it may be a link to another artifact's file.
    """
    destination.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        copy = destination / path.name
        if path.is_dir():
            copy_folder(path, copy)
            continue
        copy.unlink(missing_ok=True)
        try:
            os.link(path, copy)
        except OSError:
            shutil.copy2(path, copy)
