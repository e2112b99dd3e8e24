"""Files that a reader finds whole or not at all, whichever library writes them."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from eagle3.errors import DataError
from eagle3.files.disk import disk_error, system_error

WRITING, PARTIAL = ".writing", ".partial"
"""Suffixes of what a kill leaves beside a file: a folder, or all of the file under another name."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Gives a name to write to; the file takes its own name when all of it is written.

    A kill leaves at most names with the suffixes above; the next writer of the same file takes them away.

    Raises:
        DataError: the disk refused, be it told by the system (OSError), by safetensors or by torch.save (RuntimeError).
    """
    # A folder of its own: safetensors writes beside the name it is given, under a random one that a kill leaves there.
    scratch, partial = path.with_name(path.name + WRITING), path.with_name(path.name + PARTIAL)
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        inner = scratch / path.name
        inner.touch()
        mode = inner.stat().st_mode & 0o777
        yield inner
        inner.chmod(mode)  # safetensors keeps its files from other users
        inner.replace(partial)
        scratch.rmdir()  # before the file is there: who finds it has no reason to look for a leftover
        partial.replace(path)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise _refused(error, path) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _refused(error: Exception, path: Path) -> DataError:
    number = re.search(r"os error (\d+)", str(error))  # in safetensors' words
    if number is not None:
        error = OSError(int(number[1]), os.strerror(int(number[1])))
    if (said := system_error(error)) is not None:
        return disk_error(said, path)
    return DataError(f"{path} could not be written: {error}. Is there room on its disk?")
