"""Files of torch.save, read without unpickling anything but tensors."""

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eagle3.data.exchange.formats import REMEDY, Source, Stored, as_tokens, in_natural_order
from eagle3.errors import DataError

SMALL = 1 << 20
"""Bytes of a member that is looked at whenever its file is opened: what names the tensors, token ids and masks."""


def load_dict(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The file's dictionary, its tensors mapped and its states not read.

    Raises DataError where it is not one with these keys, or its small parts are damaged.
    """
    require_intact(path, SMALL)
    try:
        found = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} can't be read, it is truncated or no file of tensors ({why}). {REMEDY}") from None
    if not isinstance(found, dict) or any(key not in found for key in keys):
        has = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise DataError(f"{path} should hold {', '.join(keys)}, and holds {has}. Is --format right?")
    return found


def require_intact(path: Path, at_most: int | None = None) -> None:
    """Compares the file's members with the checksums that torch.save wrote; torch.load does not.

    Args:
        at_most: larger members are left out.

    Raises:
        DataError: a member is not what was written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # torch.serialization.set_crc32_options(False) leaves 0 there.
                if member.CRC == 0 or (at_most is not None and member.file_size > at_most):
                    continue
                if member.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"{member.filename!r} is compressed, and torch compresses nothing")
                with archive.open(member) as file:
                    while file.read(SMALL):
                        pass
    # Whatever zipfile meets in a directory of members that was changed.
    except (zipfile.BadZipFile, struct.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise DataError(f"{path} can't be read, it is truncated or damaged ({error}). {REMEDY}") from None


def source(folder: Path, files: list[Path], load: Callable[[Path], Stored]) -> Source:
    """A folder of files that each hold a whole sequence; numbered in natural order of their names."""
    files = in_natural_order(files)

    def tokens(i: int) -> tuple[Any, Any]:
        stored = load(files[i])
        return as_tokens(stored.input_ids, stored.loss_mask)

    return Source(folder, files, list(range(len(files))), tokens)
