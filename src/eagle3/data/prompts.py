"""Conversations out of a JSONL file, a folder of JSONL or parquet files, or a hub dataset: streamed, row by row.

A row is `{"messages": [{"role": ..., "content": ...}, ...]}` or `{"prompt": ..., "response": ...}` (the response may be
left out where answers are regenerated). A row that is neither is reported with its place and why, and left out.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.config.schema import DatasetConfig
from eagle3.data.jsonl import BadRowError, jsonl_rows
from eagle3.errors import ConfigError, DataError

Message = dict[str, str]
ROLES = ("system", "developer", "user", "assistant", "tool")
EARLY_ROWS = 1000
MAX_PROBLEMS = 100


@dataclass(frozen=True)
class Conversation:
    index: int
    """Place in the source, counting every row: what is wrong with one row does not move the others."""
    where: str
    """File and line, for messages."""
    messages: list[Message]
    row_id: str | int | None = None
    """The row's own `id`, kept when answers are regenerated."""

    @property
    def prompt_key(self) -> bytes:
        """Identity of what is asked, whatever the answers: decides the side of the split."""
        asked = [m for m in self.messages if m["role"] != "assistant"]
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()


@dataclass
class Tally:
    """What was read and what was left out, with the first places."""

    conversations: int = 0
    """Rows read, good or bad."""
    bad: int = 0
    """Rows that are no conversation."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason to rows left out: bad ones and those dropped later."""
    problems: list[dict[str, str]] = field(default_factory=list)
    """The first 100: line, why."""
    read_bytes: int = 0
    total_bytes: int = 0
    """Of local files; 0 where unknown."""

    def skip(self, reason: str, where: str, why: str) -> None:
        self.skipped[reason] += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append({"line": where, "why": why})

    def first_problems(self, n: int = 5) -> str:
        return "".join(f"\n  {p['line']}: {p['why']}" for p in self.problems[:n])


def read_conversations(cfg: DatasetConfig, tally: Tally) -> Iterator[Conversation]:
    """At most `limit` distinct conversations, in the source's order; what is left out is counted in `tally`.

    Raises:
        ConfigError: `dataset.path` is nothing that can be read.
        DataError: no row is usable, or more than `dataset.bad_rows` of them are not.
    """
    seen: set[bytes] = set()
    given = 0
    for where, row in _rows(cfg, tally):
        index = tally.conversations
        tally.conversations += 1
        try:
            messages = messages_of(row)
        except BadRowError as error:
            tally.bad += 1
            tally.skip(error.reason, where, str(error))
            if tally.bad == tally.conversations == EARLY_ROWS:
                break
            continue
        digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).digest()[:16]
        if digest in seen:
            tally.skip("duplicate", where, "the same conversation as an earlier row")
            continue
        seen.add(digest)
        row_id = row.get("id")
        yield Conversation(index, where, messages, row_id if isinstance(row_id, str | int) else None)
        given += 1
        if given == cfg.limit:
            break
    if tally.conversations == tally.bad:
        raise DataError(
            f"{cfg.path}: none of {tally.conversations:,} rows is a conversation.{tally.first_problems()}\n"
            'A row is {"messages": [{"role": "user", "content": "..."}, ...]} or {"prompt": "...", "response": "..."}.'
        )
    if tally.bad > cfg.bad_rows * tally.conversations:
        raise DataError(
            f"{cfg.path}: {tally.bad:,} of {tally.conversations:,} rows are no conversations; "
            f"more than dataset.bad_rows={cfg.bad_rows:g} of them.{tally.first_problems()}\n"
            "Mend them, or set dataset.bad_rows to the share that may be left out."
        )


def messages_of(row: Any) -> list[Message]:
    """The messages of one row. `row` may be the exception that reading it raised. Raises BadRowError."""
    if isinstance(row, BadRowError):
        raise row
    if not isinstance(row, dict):
        raise BadRowError("not an object", f"a row is a JSON object, this is a {type(row).__name__}")
    if row.get("messages") is not None:
        messages = row["messages"]
    elif isinstance(row.get("prompt"), str):
        messages = [{"role": "user", "content": row["prompt"]}]
        if row.get("response") is not None:
            messages.append({"role": "assistant", "content": row["response"]})
    elif "prompt" in row:
        raise BadRowError("no messages", f"`prompt` is {json.dumps(row['prompt'], default=str)[:40]}, not a string")
    else:
        raise BadRowError(
            "no messages", f"neither `messages` nor `prompt`; its keys are {', '.join(map(str, row)) or 'none'}"
        )
    if not isinstance(messages, list) or not messages:
        raise BadRowError("no messages", "`messages` is not a list with something in it")
    return [_message(number, message) for number, message in enumerate(messages)]


def _message(number: int, message: Any) -> Message:
    if not isinstance(message, dict):
        raise BadRowError("bad message", f"message {number} is not an object")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise BadRowError("unknown role", f"message {number} has role {role!r}; known are {', '.join(ROLES)}")
    for key in ("tool_calls", "reasoning_content"):
        if message.get(key):
            raise BadRowError(f"{key} not supported", f"message {number}; put what the model writes into `content`")
    if isinstance(content, list):  # the multimodal form; of text alone it is only another spelling
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise BadRowError("not text", f"message {number} has parts that are not text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRowError("not text", f"the content of message {number} is {type(content).__name__}, not a string")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise BadRowError("not Unicode", f"message {number} has half of a surrogate pair") from None
    return {"role": role, "content": content}


def _rows(cfg: DatasetConfig, tally: Tally) -> Iterator[tuple[str, Any]]:
    """(place, row or the BadRowError of reading it) of every row."""
    path = Path(cfg.path).expanduser()
    if path.is_file():
        files = [path]
    elif path.is_dir() and any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        return (yield from _library_rows(cfg, path))
    elif path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in (".jsonl", ".parquet") and p.is_file())
        if not files:
            raise ConfigError(f"dataset.path={cfg.path!r}: no *.jsonl or *.parquet in this folder.")
    elif cfg.path.count("/") == 1 and not cfg.path.startswith((".", "~", "/")) and path.suffix != ".jsonl":
        return (yield from _library_rows(cfg, None))
    else:
        raise ConfigError(f"dataset.path={cfg.path!r}: no such file or folder, and not a hub id (owner/name) either.")
    tally.total_bytes = sum(file.stat().st_size for file in files)
    before = 0
    for file in files:
        name = file.name if file == path else str(file.relative_to(path))
        for where, row, position in _parquet(file, name) if file.suffix == ".parquet" else jsonl_rows(file, name):
            tally.read_bytes = before + position
            yield where, row
        before += file.stat().st_size


def _parquet(file: Path, name: str) -> Iterator[tuple[str, Any, int]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        table, size, number = ParquetFile(file), file.stat().st_size, 0
        for batch in table.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield f"{name} row {number}", row, size * number // table.metadata.num_rows
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{file}: not a readable parquet file ({error}).") from error


def _library_rows(cfg: DatasetConfig, folder: Path | None) -> Iterator[tuple[str, Any]]:
    """Through the `datasets` library: a folder that it saved, or a dataset of the hub."""
    import datasets

    try:
        if folder is not None:
            saved = datasets.load_from_disk(str(folder))
            rows = saved[cfg.split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            rows = datasets.load_dataset(cfg.path, split=cfg.split, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{cfg.path} [{cfg.split}] row {number}", row
    except Exception as error:  # anything from a missing split to no network: the library's own words say which
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"dataset.path={cfg.path!r}, split {cfg.split!r}: can't be read ({first}). Check it and dataset.split; "
            "without a network, save the rows as JSONL elsewhere and give that file."
        ) from error
