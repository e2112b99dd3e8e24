"""`chains.jsonl`: each answer of a chain, one line a prompt, written as it is done; an evaluation goes on from it.

Whole lines only: what a killed process left of a line is cut away, and its prompt asked again.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eagle3.evaluation.chain import Chain, Round
from eagle3.evaluation.prompts import Prompt
from eagle3.evaluation.sets import UNTRAINED
from eagle3.evaluation.trained_on import key_of
from eagle3.files.disk import disk_error
from eagle3.files.whole import whole_file

CHAINS = "chains.jsonl"


@dataclass(frozen=True)
class Answered:
    """What was measured on one prompt."""

    trained: Chain
    untrained: Chain | None
    seconds: float

    def row(self) -> dict[str, Any]:
        found = _row(self.trained)
        return (found if self.untrained is None else found | {UNTRAINED: _row(self.untrained)}) | {
            "seconds": self.seconds
        }

    @staticmethod
    def of(row: dict[str, Any]) -> "Answered":
        """Raises KeyError, TypeError or ValueError where the row is none."""
        untrained = _chain(row[UNTRAINED]) if UNTRAINED in row else None
        return Answered(_chain(row), untrained, float(row["seconds"]))


def _row(chain: Chain) -> dict[str, Any]:
    return {"output_ids": chain.output_ids, "rounds": [vars(round_) for round_ in chain.rounds]}


def _chain(row: dict[str, Any]) -> Chain:
    return Chain([int(token) for token in row["output_ids"]], [Round(**round_) for round_ in row["rounds"]])


class ChainJournal:
    """The answers that are there, of these prompts and this measurement; others are passed over."""

    def __init__(self, folder: Path, measurement: dict[str, Any], prompts: list[Prompt]) -> None:
        """
        Args:
            measurement: all that determines an answer's line beside the prompt.

        Raises:
            DataError: the file can't be written.
        """
        self.path = folder / CHAINS
        self._of = hashlib.sha256(json.dumps(measurement, sort_keys=True, default=str).encode()).hexdigest()[:16]
        wanted = {self._marks(prompt) for prompt in prompts}
        self.answers: dict[tuple[str, str], Answered] = {}
        """By set and key."""
        try:
            lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
            kept = [line for line in lines if self._take(line, wanted)]
            if kept != lines:
                with whole_file(self.path) as partial:
                    partial.write_bytes(b"".join(kept))
            self._file = self.path.open("ab")
        except OSError as error:
            raise disk_error(error, self.path) from error

    def _marks(self, prompt: Prompt) -> tuple[str, ...]:
        """What a line must have: its measurement, its prompt's name, and what was asked."""
        return self._of, prompt.set, prompt.key, hashlib.sha256(key_of(prompt.input_ids)).hexdigest()[:16]

    def _take(self, line: bytes, wanted: set[tuple[str, ...]]) -> bool:
        try:
            row = json.loads(line)
            marks = (row["of"], row["set"], row["key"], row["asked"])
            answered = Answered.of(row)
        except (ValueError, KeyError, TypeError):  # torn, or nothing of ours
            return False
        if not line.endswith(b"\n") or marks not in wanted or marks[1:3] in self.answers:
            return False
        self.answers[row["set"], row["key"]] = answered
        return True

    def add(self, prompt: Prompt, answered: Answered) -> None:
        """Raises DataError where it can't be written."""
        marks = dict(zip(("of", "set", "key", "asked"), self._marks(prompt), strict=True))
        try:
            self._file.write(json.dumps(marks | answered.row()).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.answers[prompt.set, prompt.key] = answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
