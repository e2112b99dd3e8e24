"""Prompt sets: where they are, what they are called, what is in them. Imports nothing heavy: a plan asks too."""

from collections.abc import Sequence
from pathlib import Path

from eagle3.config import PROJECT, Config
from eagle3.data.jsonl import BadRowError, jsonl_rows
from eagle3.data.limits import context_flag
from eagle3.data.prompts import Message, messages_of
from eagle3.errors import ConfigError, DataError
from eagle3.server.flags import RESERVED_TOKENS

HELD_OUT = "held_out"
SHIPPED = PROJECT / "datasets" / "prompts"
UNTRAINED = "untrained"
"""What figures of the untrained drafter are called, where those of a set have its name."""


def is_named(name: str) -> bool:
    """Whether it is a set's name, not a file's."""
    return name == HELD_OUT or (SHIPPED / f"{name}.jsonl").is_file()


def prompt_file(name: str) -> Path:
    """Of a set: a shipped one, or a file. Raises ConfigError where there is none."""
    path = SHIPPED / f"{name}.jsonl" if is_named(name) else Path(name).expanduser()
    if not path.is_file():
        there = ", ".join(_names())
        raise ConfigError(f"evaluate.prompts: {name} is no file, and none of {there}")
    return path


def set_name(name: str) -> str:
    """What a set is called in figures: a file without its folder and ending."""
    return name if is_named(name) else Path(name).stem


def require_sets(names: Sequence[str]) -> None:
    """Raises ConfigError where a file is not there, or would be called as another set is."""
    called: dict[str, str] = {}
    for name in names:
        own = set_name(name)
        if name != HELD_OUT:
            prompt_file(name)
        if not is_named(name) and own in (*_names(), UNTRAINED):
            raise ConfigError(
                f"evaluate.prompts: {name} would be called {own} in the figures, which is another; rename the file"
            )
        if own in called:
            raise ConfigError(
                f"evaluate.prompts: {called[own]} and {name} would both be called {own} in the figures; rename a file"
            )
        called[own] = name


def read_set(path: Path) -> list[tuple[str, list[Message]]]:
    """(key, conversation up to the answer that is wanted) of each row: its `id`, or the number of its line.

    Raises:
        DataError: a row is no prompt, asks nothing, or has the id of another; names the line.
    """
    found: dict[str, tuple[str, list[Message]]] = {}
    for where, row, _ in jsonl_rows(path, path.name):
        try:
            messages = messages_of(row)
        except BadRowError as error:
            raise DataError(
                f"evaluate.prompts: {path.parent / where}: {error}. A row is "
                '{"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}'
            ) from None
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages or not messages[-1]["content"].strip():
            raise DataError(f"evaluate.prompts: {path.parent / where}: asks nothing; remove the row")
        key = row.get("id")
        key = str(key) if isinstance(key, str | int) else where.rpartition(":")[2]
        if key in found:
            raise DataError(
                f"evaluate.prompts: {path.parent / where}: its id {key!r} is that of {found[key][0]}; give each its own"
            )
        found[key] = (where, messages)
    if not found:
        raise DataError(f"evaluate.prompts: {path}: no prompt is in it")
    return [(key, messages) for key, (_, messages) in found.items()]


def longest_asked(cfg: Config, context_length: int) -> int:
    """Tokens that leave room for `evaluate.max_new_tokens`.

    Args:
        context_length: the target's.

    Raises:
        ConfigError: there is room for none.
    """
    context = context_flag(cfg, context_length, "serving") if cfg.evaluate.kind == "served" else context_length
    room = context - cfg.evaluate.max_new_tokens - RESERVED_TOKENS
    if room < 1:
        raise ConfigError(
            f"evaluate.max_new_tokens: {cfg.evaluate.max_new_tokens} leaves no room for a prompt in a context of "
            f"{context} tokens; give less"
        )
    return room


def _names() -> list[str]:
    return [HELD_OUT, *sorted(path.stem for path in SHIPPED.glob("*.jsonl"))]
