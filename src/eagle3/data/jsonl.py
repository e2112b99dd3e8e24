"""JSONL as people have it: one object a line. What is wrong with a line is told with its place in the file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3.errors import DataError

_BOM = b"\xef\xbb\xbf"


class BadRowError(ValueError):
    """Why a row can't be used: a short reason to count by, and its particulars."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def jsonl_rows(file: Path, name: str) -> Iterator[tuple[str, Any, int]]:
    """(`name:line`, row or the BadRowError of reading it, bytes up to its end) of every line that is not blank.

    A line ends where the file has a line feed, and nowhere else: JSON's strings may hold other separators of lines.

    Raises:
        DataError: the file can't be read.
    """
    position = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                position += len(line)
                text = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                if text:
                    yield f"{name}:{number}", _parsed(text), position
    except OSError as error:
        raise DataError(f"{file}: can't be read ({error.strerror}).") from error


def _parsed(text: bytes) -> Any:
    try:
        row = json.loads(text.decode())
    except UnicodeDecodeError as error:
        return BadRowError("not UTF-8", f"byte {error.start + 1} of the line")
    except json.JSONDecodeError as error:  # its own line is that of the row, which is always 1
        return BadRowError("not JSON", f"{error.msg} at character {error.pos + 1} of the line")
    except ValueError as error:
        return BadRowError("not JSON", str(error))
    except RecursionError:
        return BadRowError("not JSON", "nested too deep")
    if isinstance(row, list):
        return BadRowError("not an object", "a JSON array; a JSONL file has one object a line")
    return row
