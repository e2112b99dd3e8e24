"""`chains.jsonl`: each answer of a chain, one line a prompt, written as it is done; an evaluation goes on from it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from eagle3.evaluation.chain import Chain, ChainFigures, Round
from eagle3.evaluation.prompts import Prompt, ids_of
from eagle3.evaluation.sequences import Sequences
from eagle3.evaluation.sets import UNTRAINED
from eagle3.files.json_lines import JsonLines

CHAINS = "chains.jsonl"
_MARKS = ("of", "set", "key", "asked")
"""What a line must have: its measurement, its prompt's name, and what was asked."""


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
        """The inverse of `row`."""
        untrained = _chain(row[UNTRAINED]) if UNTRAINED in row else None
        return Answered(_chain(row), untrained, float(row["seconds"]))


def _row(chain: Chain) -> dict[str, Any]:
    return {"output_ids": chain.output_ids, "rounds": [vars(round_) for round_ in chain.rounds]}


def _chain(row: dict[str, Any]) -> Chain:
    return Chain([int(token) for token in row["output_ids"]], [Round(**round_) for round_ in row["rounds"]])


def counts_of(prompts: list[Prompt], chains: list[Chain], steps: int) -> Sequences:
    """Passes of the target for each prompt and draft; a prompt's id is a hash of its tokens."""
    each = [ChainFigures(steps) for _ in chains]
    for figures, chain in zip(each, chains, strict=True):
        figures.add(chain)
    reached, accepted = ([getattr(one, name) for one in each] for name in ("reached", "right"))
    return Sequences(ids_of(prompts), np.array(reached), np.array(accepted))


class ChainJournal:
    """The answers that are there, of these prompts and this measurement; others are dropped."""

    def __init__(self, folder: Path, measurement: dict[str, Any], prompts: list[Prompt]) -> None:
        """
        Args:
            measurement: all that determines an answer's line beside the prompt.

        Raises:
            DataError: the file can't be written.
        """
        self._of = hashlib.sha256(json.dumps(measurement, sort_keys=True, default=str).encode()).hexdigest()[:16]
        self._wanted = {self._marks(prompt) for prompt in prompts}
        self.answers: dict[tuple[str, str], Answered] = {}
        """By set and key."""
        self._lines = JsonLines(folder / CHAINS, self._take)

    def _marks(self, prompt: Prompt) -> tuple[str, ...]:
        """The values of `_MARKS`."""
        return self._of, prompt.set, prompt.key, prompt.asked

    def _take(self, row: dict[str, Any]) -> bool:
        marks = tuple(row[name] for name in _MARKS)
        if marks not in self._wanted or (row["set"], row["key"]) in self.answers:
            return False
        self.answers[row["set"], row["key"]] = Answered.of(row)
        return True

    def add(self, prompt: Prompt, answered: Answered) -> None:
        """Raises DataError where it can't be written."""
        self._lines.add(dict(zip(_MARKS, self._marks(prompt), strict=True)) | answered.row())
        self.answers[prompt.set, prompt.key] = answered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lines.close()
