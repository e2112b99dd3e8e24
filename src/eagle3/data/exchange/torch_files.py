"""Files of torch.save, read without unpickling anything but tensors."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eagle3.data.exchange.formats import REMEDY, Source, Stored, as_tokens, in_natural_order
from eagle3.errors import DataError


def load_dict(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The file's dictionary, its tensors mapped and not read. Raises DataError where it is not one with these keys."""
    try:
        found = torch.load(path, weights_only=True, mmap=True, map_location="cpu")
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} can't be read, it is truncated or no file of tensors ({why}). {REMEDY}") from None
    if not isinstance(found, dict) or any(key not in found for key in keys):
        has = sorted(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise DataError(f"{path} should hold {', '.join(keys)}, and holds {has}. Is --format right?")
    return found


def source(files: list[Path], load: Callable[[Path], Stored]) -> Source:
    """A folder of files that each hold a whole sequence; numbered in natural order of their names."""
    files = in_natural_order(files)

    def tokens(i: int) -> tuple[Any, Any]:
        stored = load(files[i])
        return as_tokens(stored.input_ids, stored.loss_mask)

    return Source(files, list(range(len(files))), tokens)
