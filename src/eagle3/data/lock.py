"""One process that makes a folder."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3.errors import DataError

NAME = "lock"


@contextmanager
def hold(work: Path) -> Iterator[None]:
    """Holds the folder `work` (made when missing) for this process.

    The lock is the kernel's: an owner that dies, however it does, loses it. Raises DataError when another lives.
    """
    path = work / NAME
    while True:
        work.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise DataError(
                f"{work.parent} is being made by {owner} already. Wait for it, or stop it; what it made stays."
            ) from None
        try:
            # Whoever finishes removes the folder: the lock counts only if its file is still the one in place.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                break
        except FileNotFoundError:
            pass
        file.close()
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        file.close()
