"""Large files that a reader finds whole or not at all, whichever library writes them."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from eagle3.data.space import disk_error
from eagle3.errors import DataError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a name beside `path` to write to; the file takes its own name when all of it is written.

    Raises:
        DataError: the disk refused, be it told by the system (OSError), by safetensors or by torch.save (RuntimeError).
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode & 0o777
        yield partial
        partial.chmod(mode)  # safetensors keeps its files from other users
        partial.replace(path)
    except (OSError, SafetensorError, RuntimeError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise _refused(error, path) from error


def _refused(error: Exception, path: Path) -> DataError:
    number = re.search(r"os error (\d+)", str(error))  # in safetensors' words
    if number is not None:
        error = OSError(int(number[1]), os.strerror(int(number[1])))
    if isinstance(error, OSError):
        return disk_error(error, path)
    return DataError(f"{path} could not be written: {error}. Is there room on its disk?")
