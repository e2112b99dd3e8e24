"""Small files of JSON that a reader finds whole or not at all."""

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    """Written beside and renamed; paths and the like as their text. Raises OSError."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    beside.replace(path)
