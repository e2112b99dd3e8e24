"""What has been answered already: a journal with one line an answer, in the order they came.

Append-only, so an interruption at any moment costs the answers in flight and no others; a torn line does not count.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from eagle3.data.prompts import Conversation
from eagle3.files.disk import disk_error


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    finish: str
    """stop, or length where `prepare.max_new_tokens` cut it."""


class Journal:
    """The answers of each conversation, in turn order; kept in a file."""

    def __init__(self, path: Path, conversations: list[Conversation]) -> None:
        """Takes up what an earlier run left; lines of other conversations than these are passed over."""
        self.path = path
        self.answers: dict[int, list[Answer]] = {c.index: [] for c in conversations}
        self._keys = {c.index: c.prompt_key.hex()[:16] for c in conversations}
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            for line in lines:
                self._take(line)
            self._file = path.open("ab")
            if lines and not lines[-1].endswith(b"\n"):
                self._file.write(b"\n")
        except OSError as error:
            raise disk_error(error, path) from error

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            index, turn, key = int(row["index"]), int(row["turn"]), row["key"]
            answer = Answer(str(row["text"]), int(row["tokens"]), str(row["finish"]))
        except (ValueError, KeyError, TypeError):  # torn
            return
        if self._keys.get(index) == key and len(self.answers[index]) == turn:
            self.answers[index].append(answer)

    def add(self, index: int, answer: Answer) -> None:
        """Raises DataError where it can't be written."""
        turn = len(self.answers[index])
        row = {"index": index, "turn": turn, "key": self._keys[index], **vars(answer)}
        try:
            self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.answers[index].append(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
