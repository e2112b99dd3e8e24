"""Is an export whole? As far as its files can tell: they hold no checksums of ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle3.data.exchange.formats import Format, in_natural_order, require_computed
from eagle3.data.exchange.marker import EXPORT
from eagle3.data.exchange.table import FORMATS
from eagle3.errors import DataError

CHECKED = "every file is there and whole, with ids, masks and states of one sequence; states are finite"
NOT_CHECKED = "whether the states are the dataset's: {format} has no checksums of them"
_NAMED = 3
"""So many files of a kind are named, and the rest counted."""
NOT_COMPARED = "whether the states are the dataset's; bytes that changed since they were written would have been found"


def check_export(
    folder: Path, marker: dict[str, Any], on_progress: Callable[[int, int], None] | None = None
) -> Iterator[str]:
    """Yields what is wrong with an export's folder, file by file. Reads all of it.

    Args:
        marker: of its eagle3-export.json.
        on_progress: called with (files read, files).
    """
    try:
        form, count = FORMATS[marker["format"]], int(marker["sequences"])
        states, hidden_size = len(marker["boundaries"]) + 1, int(marker["hidden_size"])
    except (KeyError, TypeError, ValueError) as error:
        yield f"eagle3-export.json is not as an export writes it ({error!r}); export again, into another folder"
        return
    for i in range(count):
        path = folder / form.file(i)
        if fault := _fault(path, form, states, hidden_size):
            yield fault
        if on_progress is not None:
            on_progress(i + 1, count)
    if form.finish is not None:
        yield from _table_faults(folder, form, count)
    if (folder / "work").exists():
        yield "the export is not finished: the same command continues it"


def not_checked(marker: dict[str, Any]) -> str:
    """What `check_export` can't tell."""
    form = FORMATS[marker["format"]]
    return NOT_COMPARED if form.require_intact is not None else NOT_CHECKED.format(format=form.name)


def foreign(folder: Path, marker: dict[str, Any]) -> str | None:
    """A note on files that are in the folder of an export without a fault and are none of its own; None without any."""
    form = FORMATS[marker["format"]]
    own = {EXPORT, *(form.file(i) for i in range(int(marker["sequences"])))}
    own |= form.finished(folder) if form.finished is not None else set()
    there = (path for path in folder.rglob("*") if not path.is_dir())
    found = in_natural_order([path for path in there if path.relative_to(folder).as_posix() not in own])
    if not found:
        return None
    named = ", ".join(str(path.relative_to(folder)) for path in found[:_NAMED])
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return f"not written by the export: {named}{more}. A trainer may take such files for its own; move them away"


def _fault(path: Path, form: Format, states: int, hidden_size: int) -> str | None:
    if not path.exists():
        return f"{path} is not there"
    try:
        if form.require_intact is not None:
            form.require_intact(path)
        stored = form.load(path)
        require_computed(path, stored.columns)
    except DataError as error:
        return str(error)
    shapes = [list(column.shape) for column in stored.columns]
    if shapes != [[len(stored.input_ids), hidden_size]] * states:
        return f"{path}: states {shapes}, where {states} of {hidden_size} numbers are due"
    if not all(bool(torch.isfinite(column).all()) for column in stored.columns):
        return f"{path} has a value that is not finite (NaN or infinity)"
    return None


def _table_faults(folder: Path, form: Format, count: int) -> Iterator[str]:
    """The rows that all sequences' tokens are in, against the files."""
    try:
        source = form.open(folder)
        if len(source.files) + source.missing != count:
            yield f"{folder}: {len(source.files) + source.missing} rows, where {count} were exported"
            return
        for i, path in enumerate(source.files):
            if not np.array_equal(source.tokens(i)[0], form.load(path).input_ids.numpy()):
                yield f"{path}: its token ids are not those of its row"
    except DataError as error:
        yield str(error)
