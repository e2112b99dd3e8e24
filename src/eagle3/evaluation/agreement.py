"""Do a chain and a server measure the same? Compared on the prompts that both were asked; both recorded each answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.errors import DataError
from eagle3.evaluation.chains import CHAINS
from eagle3.evaluation.figures import accept_length
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.recorded import LOADS
from eagle3.files.json_lines import rows_of

TOLERANCE = 0.02
"""Of the accept length. Passes of other kernels round otherwise, and now and then an answer goes another way."""


@dataclass(frozen=True)
class Agreement:
    """Greedy, one chain of drafts, the same prompts."""

    prompts: int
    same_answers: int
    """Of them; on these both must count the same, but for drafts at ties."""
    chain: float
    """Accept length."""
    served: float
    chain_on_same: float | None
    """Accept length over the same answers alone; None where there are none."""
    served_on_same: float | None

    @property
    def ratio(self) -> float:
        return self.chain / self.served

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE

    def row(self) -> dict[str, Any]:
        return {**vars(self), "chain_over_served": self.ratio, "agrees": self.agrees}


def agreement(served: Path, chain: Path, setting: str) -> Agreement:
    """
    Args:
        served, chain: folders of the two evaluations.
        setting: the server's, with topk 1 and as many steps as the chain had: `s3k1d4`.

    Raises DataError where they have nothing in common, or a line of one was changed.
    """
    replies = {(reply.set, reply.key): reply for reply in _greedy(served / LOADS, setting)}
    pairs: list[tuple[Reply, dict[str, Any]]] = []
    for row in rows_of(chain / CHAINS):
        if (reply := replies.get((row["set"], row["key"]))) is not None:
            pairs.append((reply, row))
    if not pairs:
        raise DataError(f"{served} and {chain} were asked no prompt that is the same, greedily, with {setting}")
    same = [(reply, row) for reply, row in pairs if reply.output_ids == row["output_ids"]]
    return Agreement(
        prompts=len(pairs),
        same_answers=len(same),
        chain=_of_chains([row for _, row in pairs]),
        served=accept_length([reply for reply, _ in pairs]),
        chain_on_same=_of_chains([row for _, row in same]) if same else None,
        served_on_same=accept_length([reply for reply, _ in same]) if same else None,
    )


def _greedy(path: Path, setting: str) -> list[Reply]:
    """One request at a time, or as few as were measured."""
    loads = [Load.of(row) for row in rows_of(path)]
    loads = [load for load in loads if load.server == setting and load.temperature == 0]
    return min(loads, key=lambda load: (load.concurrency, load.round)).replies if loads else []


def _of_chains(rows: Sequence[dict[str, Any]]) -> float:
    rounds = [round_ for row in rows for round_ in row["rounds"]]
    return 1 + sum(round_["accepted"] for round_ in rounds) / len(rounds) if rounds else 1.0
