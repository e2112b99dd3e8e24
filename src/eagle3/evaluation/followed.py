"""A chain that follows served answers: which ones, and how it stands to the server. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.errors import DataError
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.recorded import LOADS
from eagle3.files.json_lines import rows_of

TOLERANCE = 0.02
"""Of the accept length. Where two drafts are as likely as bfloat16 can tell, other kernels choose otherwise."""
_STAGE = "eval/followed"


@dataclass(frozen=True)
class Agreement:
    """Greedy, one chain of drafts, the same prompts."""

    prompts: int
    same_passes: int
    """Of them: as many passes, with as many drafts accepted in each."""
    chain: float
    """Accept length."""
    served: float

    @staticmethod
    def of_summary(summary: Mapping[str, Any]) -> "Agreement | None":
        """None where nothing was followed."""
        served = summary.get(f"{_STAGE}/served_accept_length")
        if served is None:
            return None
        same = summary[f"{_STAGE}/same_passes"]
        return Agreement(summary["eval/sequences"], same, summary["eval/accept_length"], served)

    @property
    def ratio(self) -> float:
        return self.chain / self.served

    @property
    def agrees(self) -> bool:
        return abs(self.ratio - 1) <= TOLERANCE

    def metrics(self) -> dict[str, float]:
        """`eval/followed/...`: the chain's own accept length is `eval/accept_length`."""
        found = {"served_accept_length": self.served, "chain_over_served": self.ratio, "same_passes": self.same_passes}
        return {f"{_STAGE}/{name}": value for name, value in found.items()}

    def __str__(self) -> str:
        passes = f"{self.same_passes} of {self.prompts} answers in passes of the same lengths"
        found = f"on the served answers, accept length {self.chain:.3f}, the server's {self.served:.3f}; {passes}"
        if self.agrees:
            return found
        return (
            f"WARNING: {found}. More than {TOLERANCE:.0%} apart is no rounding: it was served with another drafter or "
            "target, or one of the two counts something else"
        )


def greedy_replies(served: Path, setting: str) -> dict[str, Reply]:
    """By what was asked (`Prompt.asked`): one request at a time, or as few as were measured.

    Raises DataError where a line was changed, or none is such.
    """
    if not (served / LOADS).is_file():
        raise DataError(f"{served} is no served evaluation: it has no {LOADS}")
    loads = [Load.of(row) for row in rows_of(served / LOADS)]
    greedy = [load for load in loads if load.server == setting and load.temperature == 0]
    if not greedy:
        chains = {load.server for load in loads if load.temperature == 0 and "k1d" in load.server}
        there = ", ".join(sorted(chains)) or "no load of any that drafts a chain"
        raise DataError(
            f"{served} has no greedy answers with {setting}, but {there}; the first of evaluate.drafts says which are "
            "followed: s3k1d4 is {steps: 3, topk: 1, tokens: 4}"
        )
    first = min(greedy, key=lambda load: (load.concurrency, load.round))
    return {reply.asked: reply for reply in first.replies}
