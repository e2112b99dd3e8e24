"""Finished shards looked at again: which are as they were made, and what is wrong with the others.

Reading a terabyte takes minutes, so nothing is read twice without need: `checked.json` says of each shard which size
and time of change it had when its rows were last known to be right. One that was touched since is read again whole.
"""

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3.data.layout import ShardLayout
from eagle3.data.manifest import NAME as MANIFEST
from eagle3.data.manifest import Manifest
from eagle3.data.shards import open_shard
from eagle3.data.skeleton import checksum_table, index_sha256, row_checksums
from eagle3.errors import DataError
from eagle3.files.json_file import write_json

NAME = "checked.json"
THREADS = 8
"""crc32 and pread let go of the interpreter's lock."""


class Checked:
    """The record of a dataset folder. Without one, or with a torn one, nothing is known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, list[int]] = {}
        with suppress(OSError, ValueError, TypeError):
            self._known = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))

    def knows(self, file: str) -> bool:
        """Whether the shard is there and has not been touched since its rows were known to be right."""
        with suppress(OSError):
            return self._known.get(file) == _signs(self.folder / file)
        return False

    def add(self, files: Iterable[str]) -> None:
        """Notes that these shards are right as they are now."""
        for file in files:
            with suppress(OSError):
                self._known[file] = _signs(self.folder / file)
        write_json(self.folder / NAME, self._known)


def withdraw(folder: Path) -> None:
    """Makes the next run of the same command read every shard again. Raises OSError in a folder that is read-only."""
    (folder / NAME).unlink(missing_ok=True)


def untouched(folder: Path, target_fingerprint: str) -> str | None:
    """Why a dataset that was complete is not to be used unseen; None when all is as it was left. Reads no shard."""
    try:
        manifest = Manifest.load(folder)
    except DataError as error:
        return str(error)
    if manifest.target.get("fingerprint") != target_fingerprint:
        return f"{folder / MANIFEST} is of another target"
    if not manifest.complete:
        return f"{folder} is not complete"
    checked = Checked(folder)
    changed = [shard.file for shard in manifest.shards if not checked.knows(shard.file)]
    return f"{folder}: {len(changed)} of {len(manifest.shards)} shards may have changed" if changed else None


def _signs(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


Progress = Callable[[int, int], None]
"""(bytes read, bytes to be read)."""


@dataclass(frozen=True)
class Finished:
    """A shard as the manifest lists it, and what it should hold."""

    path: Path
    layout: ShardLayout
    sha256: str
    rows: np.ndarray
    """[n] int64: first row of each sequence."""
    lengths: np.ndarray
    """[n] int64."""
    unused: np.ndarray
    """[n] bool: quarantined, so that its rows do not matter."""
    known: bool
    """Not touched since its rows were known to be right."""


def damage(shard: Finished) -> str | None:
    """What is wrong with a shard: missing, truncated, changed. Reads the rows only where it was touched."""
    try:
        with open_shard(shard.path, shard.layout) as file:
            descriptor = file.fileno()
            if index_sha256(descriptor, shard.layout) != shard.sha256:
                return "has changed"
            if not shard.known and not _rows_right(descriptor, shard):
                return "has changed"
    except DataError:
        return "is missing or truncated"
    return None


def _rows_right(descriptor: int, shard: Finished) -> bool:
    table = checksum_table(descriptor, shard.layout)
    return all(
        row_checksums(descriptor, shard.layout, int(shard.rows[i]), int(shard.lengths[i])) == table[i].tolist()
        for i in np.nonzero(~shard.unused)[0]
    )


def damages(shards: list[Finished], on_progress: Progress | None) -> dict[str, str]:
    """File name -> what is wrong with it, of those with which something is."""
    found: dict[str, str] = {}
    done, total = 0, sum(shard.layout.size for shard in shards if not shard.known)
    pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "look-again")
    try:
        looks = {pool.submit(damage, shard): shard for shard in shards}
        for look in as_completed(looks):
            shard, wrong = looks[look], look.result()
            if wrong is not None:
                found[shard.path.name] = wrong
            if not shard.known and on_progress is not None:
                done += shard.layout.size
                on_progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
    return found
