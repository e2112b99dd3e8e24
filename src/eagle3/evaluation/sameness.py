"""Is a served answer with drafts the target's own? Greedy, it must be, but for ties of bfloat16.

With drafts the target computes several tokens in one pass, by other kernels than one at a time, and rounds otherwise:
where its two best tokens are nearly as likely, either may come first, and the rest of the answer differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3.evaluation.load import Load
from eagle3.evaluation.prompts import Prompt
from eagle3.server.client import Client

TIE_NATS = 0.25
"""Two steps of bfloat16 at logits of 16 to 32."""


@dataclass(frozen=True)
class Difference:
    """The first token at which an answer leaves the target's own."""

    server: str
    set: str
    key: str
    position: int
    """In the answer."""
    own: int
    """The target's token without speculation."""
    other: int


@dataclass(frozen=True)
class Explained:
    difference: Difference
    gap: float | None
    """How much likelier the target, asked once more, finds its own token, in nats; None where an answer just ends."""

    @property
    def is_tie(self) -> bool:
        return self.gap is not None and abs(self.gap) <= TIE_NATS

    def row(self) -> dict[str, Any]:
        return {**vars(self.difference), "gap": self.gap, "tie": self.is_tie}


def differences(own: Load, other: Load) -> list[Difference]:
    """Of two greedy loads on the same prompts: one for each answer that is not the same."""
    found = []
    for mine, theirs in zip(own.replies, other.replies, strict=True):
        a, b = mine.output_ids, theirs.output_ids
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if at is not None:
            found.append(Difference(other.server, mine.set, mine.key, at, a[at], b[at]))
        elif len(a) != len(b):  # one ends where the other goes on: no token of the shorter to compare
            found.append(Difference(other.server, mine.set, mine.key, min(len(a), len(b)), -1, -1))
    return found


async def explain(client: Client, found: Sequence[Difference], own: Load, prompts: Sequence[Prompt]) -> list[Explained]:
    """Asks the target without speculation how likely both tokens are, after what both answers have in common."""
    asked = {(prompt.set, prompt.key): prompt.input_ids for prompt in prompts}
    said = {(reply.set, reply.key): reply.output_ids for reply in own.replies}
    explained = []
    for difference in found:
        where = (difference.set, difference.key)
        if difference.own < 0:
            explained.append(Explained(difference, None))
            continue
        before = [*asked[where], *said[where][: difference.position]]
        one, other = await client.next_logprobs(before, [difference.own, difference.other])
        explained.append(Explained(difference, one - other))
    return explained
