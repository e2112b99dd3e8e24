"""What made a drafter, carried along with it: a run's configuration, snapshot and provenance, as texts.

A drafter's folder holds them as files, a checkpoint as strings. Either is a `--config-dir` for `snapshot=replay`.
"""

from collections.abc import Mapping
from pathlib import Path

SNAPSHOT, PROVENANCE = "snapshot/replay.yaml", "provenance.json"
FILES = ("config.yaml", SNAPSHOT, PROVENANCE)
KEY = "made_by"
"""Of a checkpoint."""


def read_origin(folder: Path) -> dict[str, str]:
    """{name: text} of those of FILES that are in a run's folder, or in a drafter's."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES if (folder / name).is_file()}


def write_origin(texts: Mapping[str, str], folder: Path) -> None:
    """Writes them beside and renames: the files that are there may be links, which other folders share."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".partial")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
