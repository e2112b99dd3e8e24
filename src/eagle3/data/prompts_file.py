"""prompts.safetensors as prepare left it: what every later stage reads its tokens from."""

import json
from contextlib import suppress
from pathlib import Path

from eagle3.config.provenance import file_sha256
from eagle3.files.json_file import write_json

NAME, SUMMARY = "prompts.safetensors", "prepare.json"
KEY = "prompts_sha256"


def write_summary(folder: Path, summary: dict[str, object]) -> None:
    """prepare.json, with the sha256 of the prompts file, which is there already."""
    write_json(folder / SUMMARY, {**summary, KEY: file_sha256([folder / NAME])})


def changed(folder: Path) -> str | None:
    """Why the file is not to be used; None when it is as it was left."""
    path = folder / NAME
    if not path.is_file():
        return f"{path} is gone"
    known = None
    with suppress(OSError, ValueError):
        known = json.loads((folder / SUMMARY).read_text(encoding="utf-8")).get(KEY)
    return None if known == file_sha256([path]) else f"{path} has changed"
