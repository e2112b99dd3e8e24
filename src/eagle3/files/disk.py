"""What is free on a disk, and the words for one that refuses."""

import errno
import os
import shutil
from pathlib import Path

from eagle3.errors import DataError

GIB, MIB = 1 << 30, 1 << 20


def existing_parent(path: Path) -> Path:
    """The path itself, or its nearest parent that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(folder: Path) -> int:
    """Bytes that a user may still write to the file system which `folder` is or will be on."""
    return shutil.disk_usage(existing_parent(folder)).free


def require_writable(folder: Path) -> None:
    """Makes nothing. Raises OSError, as making something in the folder would, be it there already or not."""
    there = existing_parent(folder)
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        number = errno.EROFS if os.statvfs(there).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), str(there))


def used_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk; a sparse file counts for what was written."""
    if not folder.is_dir():
        return 0
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())


def system_error(error: BaseException) -> OSError | None:
    """What the system said, of an error or of those that led to it: torch.save ends with its own, without a cause."""
    at: BaseException | None = error
    while at is not None and not isinstance(at, OSError):
        at = at.__cause__ or at.__context__
    return at


def is_full(error: OSError) -> bool:
    """Whether a write was refused for want of room, on the disk or in a quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_error(error: OSError, path: Path) -> DataError:
    """What to tell a user whose disk refused a write."""
    if is_full(error):
        return DataError(
            f"The disk is full: {path} could not be written ({gib(free_bytes(path))} free). Free some space, then run "
            "the same command again."
        )
    return DataError(f"{path} could not be written: {error.strerror}. Make its folder writable, or choose another one.")


def gib(n: int) -> str:
    """Bytes in GiB, whole from ten on; what is little in MiB, so that too few are never "0.00 GiB too few"."""
    if n < GIB // 10:
        return f"{n / MIB:,.2f} MiB"
    return f"{n / GIB:,.0f} GiB" if n >= 10 * GIB else f"{n / GIB:,.2f} GiB"
