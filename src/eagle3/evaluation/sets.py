"""Where prompt sets are. Imports nothing heavy: a plan asks too."""

from pathlib import Path

from eagle3.config import PROJECT
from eagle3.errors import ConfigError

HELD_OUT = "held_out"
SHIPPED = PROJECT / "datasets" / "prompts"


def prompt_file(name: str) -> Path:
    """Of a set: a shipped one, or a file. Raises ConfigError where there is none."""
    shipped = SHIPPED / f"{name}.jsonl"
    path = shipped if shipped.is_file() else Path(name).expanduser()
    if not path.is_file():
        there = ", ".join([HELD_OUT, *sorted(p.stem for p in SHIPPED.glob("*.jsonl"))])
        raise ConfigError(f"evaluate.prompts: {name} is no file, and none of {there}")
    return path
