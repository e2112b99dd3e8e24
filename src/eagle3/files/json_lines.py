"""Journals: files of JSON objects, one a line, that grow while work is done and are taken up again after a stop.

Each line ends with a checksum of the rest of it. So half a line, which a kill leaves, and a line of which a digit is
another by now are both seen, and what they stood for is done again.
"""

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3.errors import DataError
from eagle3.files.disk import disk_error
from eagle3.files.whole import whole_file

_SEALED = re.compile(rb'(\{.*), "crc": "([0-9a-f]{8})"\}\n', re.DOTALL)


def sealed(row: dict[str, Any]) -> bytes:
    """The line of a row, which must not be empty: JSON, with the crc32 of what is before it as its last key."""
    body = json.dumps(row, ensure_ascii=False).encode()[:-1]
    return body + f', "crc": "{zlib.crc32(body):08x}"}}\n'.encode()


def unsealed(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None where the line is torn, was changed, or is none of `sealed`."""
    found = _SEALED.fullmatch(line)
    if found is None or zlib.crc32(found[1]) != int(found[2], 16):
        return None
    return json.loads(found[1] + b"}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Of a journal that is finished. Raises DataError naming a line that is not what was written."""
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        row = unsealed(line)
        if row is None:
            raise DataError(f"{path}: line {number} is not what was written: it is torn, or was changed since")
        found.append(row)
    return found


class JsonLines:
    """A journal that is open. What is in it counts: lines that do not are taken out as it is opened."""

    def __init__(self, path: Path, take: Callable[[dict[str, Any]], bool] = lambda row: True) -> None:
        """Hands each row that is there to `take`, in order, and keeps it where that says so.

        Raises:
            DataError: the file can't be written.
        """
        self.path = path
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [line for line in lines if (row := unsealed(line)) is not None and take(row)]
            if kept == lines[: len(kept)]:
                self._file = path.open("ab", buffering=0)
                self._file.truncate(sum(map(len, kept)))  # takes no room, where a full disk was what stopped it
            else:
                with whole_file(path) as partial:
                    partial.write_bytes(b"".join(kept))
                self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise disk_error(error, path) from error

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, which a kill then leaves there. Raises DataError where it can't be written."""
        left = memoryview(sealed(row))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise disk_error(error, self.path) from error

    def close(self) -> None:
        self._file.close()
