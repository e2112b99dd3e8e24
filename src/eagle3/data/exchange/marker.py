"""What a folder is being made into, so that only the same command continues in it."""

import json
from pathlib import Path
from typing import Any

from eagle3.errors import ConfigError, DataError
from eagle3.files.json_file import write_json

EXPORT, IMPORT = "eagle3-export.json", "import.json"
"""What an export and an import leave in their folders."""


def require_apart(source: Path, out: Path) -> None:
    """Raises ConfigError when `out` is `source` or lies in it: what is written would be among what is read."""
    if out.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{out} lies in {source}, which is read; give a folder elsewhere")


def claim(folder: Path, name: str, what: dict[str, Any], told: dict[str, Any] | None = None) -> None:
    """Makes the folder for `what`, or finds that it was made for just that.

    Args:
        told: written beside it for whoever looks; may be another the next time.

    Raises:
        ConfigError: it holds something else.
    """
    marker = folder / name
    try:
        there = json.loads(marker.read_text(encoding="utf-8"))
        if not isinstance(there, dict):
            raise ValueError("no object")
    except FileNotFoundError:
        there = None
    except (OSError, ValueError) as error:
        raise DataError(f"{marker} can't be read ({error}). Give another folder, or remove this one.") from None
    if there is None:
        if folder.exists() and (not folder.is_dir() or any(p.name != marker.name + ".new" for p in folder.iterdir())):
            raise ConfigError(f"{folder} is there already and is not a {name.removesuffix('.json')}; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marker, what | (told or {}))
        return
    for key in sorted(what.keys() | there.keys() - (told or {}).keys()):
        if there.get(key) != what.get(key):
            raise ConfigError(
                f"{folder} was begun with {key} {there.get(key)!r}, and this command has {what.get(key)!r}; "
                "give another folder, or remove this one"
            )
