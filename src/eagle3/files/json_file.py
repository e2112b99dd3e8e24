"""Small files of JSON that a reader finds whole or not at all."""

import json
from pathlib import Path
from typing import Any

from eagle3.errors import Eagle3Error


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    """Written beside and renamed; paths and the like as their text. Raises OSError."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; {} when there is none. Raises Eagle3Error where it is torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError as error:
        raise Eagle3Error(f"{path}: not valid JSON ({error}); delete its folder and run again") from error


def json_or_empty(path: Path) -> dict[str, Any]:
    """A JSON object; {} where the file is missing or torn, because a report must not fail for one missing figure."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
