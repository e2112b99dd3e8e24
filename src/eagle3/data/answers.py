"""What has been answered already: a journal with one line an answer, in the order they came.

An interruption at any moment costs the answers in flight and no others.
"""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eagle3.data.prompts import Conversation
from eagle3.files.json_lines import JsonLines


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    finish: str
    """stop, or length where `prepare.max_new_tokens` cut it."""


class Journal:
    """The answers of each conversation, in turn order; kept in a file."""

    def __init__(self, path: Path, conversations: list[Conversation]) -> None:
        """Takes up what an earlier run left; answers to other conversations than these are dropped.

        Raises:
            DataError: the file can't be written.
        """
        self.answers: dict[int, list[Answer]] = {c.index: [] for c in conversations}
        self._keys = {c.index: c.prompt_key.hex()[:16] for c in conversations}
        self._lines = JsonLines(path, self._take)

    def _take(self, row: dict[str, Any]) -> bool:
        index = row["index"]
        if self._keys.get(index) != row["key"] or len(self.answers[index]) != row["turn"]:
            return False
        self.answers[index].append(Answer(row["text"], row["tokens"], row["finish"]))
        return True

    def add(self, index: int, answer: Answer) -> None:
        """Raises DataError where it can't be written."""
        turn = len(self.answers[index])
        self._lines.add({"index": index, "turn": turn, "key": self._keys[index], **vars(answer)})
        self.answers[index].append(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lines.close()
