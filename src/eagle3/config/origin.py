"""What made a drafter, carried along with it: a run's configuration, snapshot and provenance, as texts.

A drafter's folder holds them as files, a checkpoint as strings. Either is a `--config-dir` for `snapshot=replay`.
"""

from collections.abc import Mapping
from pathlib import Path

from eagle3.files.disk import disk_error
from eagle3.files.whole import whole_file

SNAPSHOT, PROVENANCE = "snapshot/replay.yaml", "provenance.json"
FILES = ("config.yaml", SNAPSHOT, PROVENANCE)
KEY = "made_by"
"""Of a checkpoint."""


def read_origin(folder: Path) -> dict[str, str]:
    """{name: text} of those of FILES that are in a run's folder, or in a drafter's."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES if (folder / name).is_file()}


def write_origin(texts: Mapping[str, str], folder: Path) -> None:
    """Writes each whole: the files that are there may be links, which other folders share.

    Raises DataError where they can't be written.
    """
    for name, text in texts.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error(error, path) from error
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
