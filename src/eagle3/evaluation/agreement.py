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
"""Of the accept length. Where two drafts are as likely as bfloat16 can tell, other kernels choose otherwise."""


@dataclass(frozen=True)
class Agreement:
    """Greedy, one chain of drafts, the same prompts."""

    prompts: int
    same_answers: int
    """Of them: token for token."""
    same_passes: int
    """Of them: as many passes, with as many drafts accepted in each."""
    chain: float
    """Accept length."""
    served: float

    @property
    def ratio(self) -> float:
        return self.chain / self.served

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE

    def metrics(self) -> dict[str, float]:
        """`eval/followed/...`: the chain's own accept length is `eval/accept_length`."""
        found = {"served_accept_length": self.served, "chain_over_served": self.ratio, "same_passes": self.same_passes}
        return {f"eval/followed/{name}": value for name, value in found.items()}

    def __str__(self) -> str:
        passes = f"{self.same_passes} of {self.prompts} answers in passes of the same lengths"
        found = f"on the served answers: accept length {self.chain:.3f}, the server's {self.served:.3f}; {passes}"
        if self.agrees:
            return found
        return f"WARNING: {found}. More than {TOLERANCE:.0%} apart is no rounding: one of them counts something else"


def agreement(served: Path, chain: Path, setting: str) -> Agreement:
    """
    Args:
        served, chain: folders of the two evaluations.
        setting: the server's, with topk 1 and as many steps as the chain had: `s3k1d4`.

    Raises DataError where they have nothing in common, or a line of one was changed.
    """
    replies = greedy_replies(served, setting)
    pairs: list[tuple[Reply, dict[str, Any]]] = []
    for row in rows_of(chain / CHAINS):
        if (reply := replies.get((row["set"], row["key"]))) is not None:
            pairs.append((reply, row))
    if not pairs:
        raise DataError(f"{served} and {chain} were asked no prompt that is the same, greedily, with {setting}")
    return Agreement(
        prompts=len(pairs),
        same_answers=sum(reply.output_ids == row["output_ids"] for reply, row in pairs),
        same_passes=sum(_trimmed(reply.histogram) == _histogram(row) for reply, row in pairs),
        chain=_of_chains([row for _, row in pairs]),
        served=accept_length([reply for reply, _ in pairs]),
    )


def greedy_replies(served: Path, setting: str) -> dict[tuple[str, str], Reply]:
    """By set and key: one request at a time, or as few as were measured. Raises DataError where a line was changed, or
    none is such."""
    if not (served / LOADS).is_file():
        raise DataError(f"{served} is no served evaluation: it has no {LOADS}")
    loads = [Load.of(row) for row in rows_of(served / LOADS)]
    greedy = [load for load in loads if load.server == setting and load.temperature == 0]
    if not greedy:
        there = ", ".join(sorted({load.server for load in loads if load.temperature == 0})) or "none"
        raise DataError(f"{served} has no greedy answers with {setting}; with: {there}")
    first = min(greedy, key=lambda load: (load.concurrency, load.round))
    return {(reply.set, reply.key): reply for reply in first.replies}


def _histogram(row: dict[str, Any]) -> list[int]:
    counts = [round_["accepted"] for round_ in row["rounds"]]
    return [counts.count(k) for k in range(max(counts, default=-1) + 1)]


def _trimmed(histogram: Sequence[int]) -> list[int]:
    """Without the zeros at its end."""
    longest = max((k for k, count in enumerate(histogram) if count), default=-1)
    return [*histogram[: longest + 1]]


def _of_chains(rows: Sequence[dict[str, Any]]) -> float:
    rounds = [round_ for row in rows for round_ in row["rounds"]]
    return 1 + sum(round_["accepted"] for round_ in rounds) / len(rounds) if rounds else 1.0
