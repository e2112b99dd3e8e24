"""Do a chain and a server measure the same? Compared on the prompts that both were asked; both recorded each answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.errors import DataError
from eagle3.evaluation.chains import CHAINS
from eagle3.evaluation.figures import accept_length
from eagle3.evaluation.followed import Agreement, greedy_replies
from eagle3.evaluation.load import Reply
from eagle3.files.json_lines import rows_of


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
        if (reply := replies.get(row["asked"])) is not None:
            pairs.append((reply, row))
    if not pairs:
        raise DataError(f"{served} and {chain} were asked no prompt that is the same, greedily, with {setting}")
    return Agreement(
        prompts=len(pairs),
        same_passes=sum(_trimmed(reply.histogram) == _histogram(row) for reply, row in pairs),
        chain=_of_chains([row for _, row in pairs]),
        served=accept_length([reply for reply, _ in pairs]),
    )


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
