"""`loads.jsonl`: the loads that are wanted, those that a stopped evaluation left, and what is still to be measured."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from eagle3.config.schema import EvaluateConfig
from eagle3.errors import DataError
from eagle3.evaluation.figures import NONE, UNTRAINED, name_of
from eagle3.evaluation.load import Load
from eagle3.evaluation.prompts import Prompt
from eagle3.files.json_lines import sealed, unsealed

LOADS = "loads.jsonl"


class Wanted(NamedTuple):
    """A load that is to be measured."""

    round: int
    server: str
    temperature: float
    concurrency: int

    @staticmethod
    def of(load: Load) -> "Wanted":
        return Wanted(load.round, load.server, load.temperature, load.concurrency)

    @property
    def beside(self) -> tuple[int, float, int]:
        """The same for those that are compared with each other."""
        return self.round, self.temperature, self.concurrency


def plan_of(asked: EvaluateConfig) -> list[Wanted]:
    """Every load, in the order in which they are measured: round by round, each server in turn.

    Servers that are up beside each other take turns at each temperature and concurrency, so that what is compared is
    seconds apart; where each has to be started, it does all of its loads of a round at once.

    Of random weights nothing is accepted, greedily: a measure that finds more flatters the trained ones too. One load
    at the end says so.
    """
    servers = dict.fromkeys([NONE, *map(name_of, asked.drafts)])
    ways = [(temperature, concurrency) for temperature in asked.temperatures for concurrency in asked.concurrency]
    turns = [(server, way) for server in servers for way in ways]
    if asked.beside:
        turns = [(server, way) for way in ways for server in servers]
    plan = [Wanted(round_, server, *way) for round_ in range(asked.rounds) for server, way in turns]
    return [*plan, Wanted(0, UNTRAINED, 0.0, max(asked.concurrency))] if asked.untrained else plan


def missing(plan: Sequence[Wanted], loads: Sequence[Load]) -> list[Wanted]:
    """What of the plan is still to be measured.

    A speed-up compares loads of one round, which met the same machine. After a stop the servers are new, and the
    machine may have other company: so what is left of a stopped round is compared with a load of `none` of its own,
    measured again, and what was compared before the stop stays as it is.
    """
    have = {Wanted.of(load) for load in loads}
    left = {wanted.beside for wanted in plan if wanted not in have and wanted.server != UNTRAINED}
    return [wanted for wanted in plan if wanted not in have or (wanted.server == NONE and wanted.beside in left)]


def read_loads(path: Path, plan: Sequence[Wanted], prompts: Sequence[Prompt]) -> list[Load]:
    """What the file has; [] where it is not there. A torn last line, which kill -9 leaves, is cut off it.

    Raises:
        DataError: a line is no load of this plan on these prompts.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    asked = [(prompt.set, prompt.key, prompt.asked) for prompt in prompts]
    loads: list[Load] = []
    for number, line in enumerate(whole.splitlines(keepends=True), 1):
        row = unsealed(line)
        if row is None:
            raise _foreign(path, number, "it can't be read, or was changed since it was written")
        load = Load.of(row)
        if Wanted.of(load) not in plan:
            raise _foreign(path, number, f"{Wanted.of(load)} is not asked for")
        if [(reply.set, reply.key, reply.asked) for reply in load.replies] != asked:
            raise _foreign(path, number, "it has replies to other prompts")
        loads.append(load)
    return loads


def _foreign(path: Path, number: int, why: str) -> DataError:
    return DataError(
        f"{path}: line {number} is no load of this evaluation: {why}. Move the file away, and all is measured anew."
    )


def record(file: BinaryIO, load: Load) -> None:
    """Appends the load, on the disk when this returns: whatever comes then, it need not be measured again."""
    file.write(sealed(dataclasses.asdict(load)))
    file.flush()
    os.fsync(file.fileno())
