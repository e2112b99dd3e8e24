"""Bytes needed against bytes free, asked before anything is started."""

import errno
import shutil
from pathlib import Path

from eagle3.data.layout import StateShape
from eagle3.errors import ConfigError, DataError

GIB = 1 << 30
BYTES_PER_SEQUENCE = 64
"""Offset, sample id, checksums, and its share of headers and ledgers: an allowance."""
LESS = (
    "Set paths.artifacts to a larger disk, free some space, capture fewer layers (layers.capture), store 8 bits "
    "(dataset.dtype=fp8_e4m3), or take fewer conversations (dataset.limit)."
)
"""What to do about an extraction that does not fit."""


def dataset_bytes(tokens: int, hidden_size: int, states: int, dtype: str = "bfloat16", sequences: int = 0) -> int:
    """Bytes of a dataset with `states` states a token (the boundaries and the final one), token ids and masks included.

    Kimi-K2.5 with 17.3 M tokens, 4 states of 7,168 bfloat16: 924 GiB; fp8_e4m3: 462 GiB.
    """
    shape = StateShape(tuple(str(i) for i in range(states)), hidden_size, dtype)
    return tokens * shape.token_bytes + sequences * BYTES_PER_SEQUENCE


def existing_parent(path: Path) -> Path:
    """The path itself, or its nearest parent that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(folder: Path) -> int:
    """Bytes that a user may still write to the file system which `folder` is or will be on."""
    return shutil.disk_usage(existing_parent(folder)).free


def used_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk; a sparse file counts for what was written."""
    if not folder.is_dir():
        return 0
    return sum(p.stat().st_blocks * 512 for p in folder.rglob("*") if p.is_file())


def require_space(needed: int, folder: Path, remedy: str = LESS) -> None:
    """Raises ConfigError when `needed` bytes, less what an interrupted extraction left in the folder, don't fit."""
    there, free = used_bytes(folder), free_bytes(folder)
    missing = needed - there - free
    if missing <= 0:
        return
    left = f" ({gib(there)} of them are there already)" if there >= GIB // 10 else ""
    raise ConfigError(
        f"{folder} needs {gib(needed)}{left}, and {gib(free)} are free on that disk: {gib(missing)} too few. " + remedy
    )


def disk_error(error: OSError, path: Path) -> DataError:
    """What to tell a user whose disk refused a write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"The disk is full: {path} could not be written ({gib(free_bytes(path))} free). Free some space, then run "
            "the same command again."
        )
    return DataError(
        f"{path} could not be written: {error.strerror}. Make its folder writable, or choose paths.artifacts."
    )


def gib(n: int) -> str:
    """Bytes in GiB, whole from ten on."""
    return f"{n / GIB:,.0f} GiB" if n >= 10 * GIB else f"{n / GIB:,.2f} GiB"
