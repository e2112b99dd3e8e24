"""Real acceptance without a server: the drafter drafts on its own tokens, the target checks, greedily, one sequence.

The same as SGLang's EAGLE3 workers do with topk 1: the drafter reads the target's states of accepted tokens into its
cache, then drafts a few tokens on its own states; the target runs once over all of them. Training-time test
(`drafter/ttt.py`) is this with the right tokens given, so up to the first miss both draft the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.drafter.model import Drafter, Weights
from eagle3.evaluation.forward import TransformersTarget
from eagle3.evaluation.prompts import until_end

QUERY_BLOCK = 128
Cache = tuple[Tensor, Tensor]
"""A layer's keys and values, each `[n, kv_heads, d]`."""


@dataclass(frozen=True)
class Round:
    """One pass of the target."""

    position: int
    """Of the last token whose state the drafter had; it drafted the tokens from `position + 2` on."""
    drafts: list[int]
    accepted: int
    """Of the drafts, from the first on; in the last pass also those after the answer's end, as SGLang counts."""


@dataclass
class Chain:
    output_ids: list[int] = field(default_factory=list)
    """The answer, which is the target's own."""
    rounds: list[Round] = field(default_factory=list)


class ChainDrafter:
    """A drafter with its cache of keys and values over one sequence."""

    def __init__(self, drafter: Drafter, embedding: Tensor, draft_ids: Tensor, dtype: torch.dtype) -> None:
        """
        Args:
            embedding: `[V, Ht]` the target's; `[V, H]` its own, for a drafter of another width that was exported.
            draft_ids: `[D]` target tokens.
            dtype: to compute in.
        """
        self.drafter, self.shape, self.dtype = drafter, drafter.shape, dtype
        self.weights = Weights.of(drafter, dtype)
        self.embedding, self.draft_ids = embedding, draft_ids
        self.head = drafter.lm_head.weight.to(dtype)
        self.begin()

    def begin(self) -> None:
        """Another sequence."""
        size = (0, self.shape.num_kv_heads, self.shape.head_dim)
        self._caches = [(self.head.new_zeros(size), self.head.new_zeros(size)) for _ in self.weights.layers]
        self._length = 0

    @torch.no_grad()
    def extend(self, tokens: Tensor, states: Tensor) -> None:
        """Reads m more positions: the target's `states [m, K*Ht]`, and at each the token after it, `tokens [m]`."""
        g = self.weights.fuse(states.to(self.dtype))
        positions = torch.arange(self._length, self._length + len(tokens), device=tokens.device)
        self._length += len(tokens)
        self._g, self._normed, self._caches = self._through(g, tokens, positions, self._caches)

    @torch.no_grad()
    def draft(self, count: int) -> list[int]:
        """The next tokens, each the most likely after those before; leaves the cache as it is."""
        g, normed, caches = self._g, self._normed, self._caches
        tokens = [self._choice(normed)]
        for k in range(1, count):
            position = torch.tensor([self._length - 1 + k], device=g.device)
            carried = normed if self.shape.norm_output else g
            g, normed, caches = self._through(carried, tokens[-1], position, caches)
            tokens.append(self._choice(normed))
        return torch.cat(tokens).tolist()

    def _choice(self, normed: Tensor) -> Tensor:
        """[1]: the most likely token."""
        return self.draft_ids[F.linear(normed, self.head).argmax(-1)]

    def _through(
        self, g: Tensor, tokens: Tensor, positions: Tensor, caches: list[Cache]
    ) -> tuple[Tensor, Tensor, list[Cache]]:
        """All layers at m new positions: the last one's `[1, H]`, un-normed and normed, and caches with all of them."""
        x, given = g, self.weights.embedding_share(self.embedding[tokens].to(self.dtype))
        angles = self.drafter.angles(positions, self.dtype)
        longer: list[Cache] = []
        for n, (layer, (keys, values)) in enumerate(zip(self.weights.layers, caches, strict=True), 1):
            q, key, value = layer.qkv(x, given, *angles)
            longer.append((torch.cat((keys, key)), torch.cat((values, value))))
            if n == len(caches):  # what it makes at earlier positions is no other layer's key
                q, g = q[-1:], g[-1:]
            g, x = layer.after_attention(g, self._attend(q, *longer[-1]))
            given = None
        return g, x, longer

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Of queries `[m, heads, d]` at the last m positions, over all keys up to their own: `[m, heads * d]`."""
        group = self.shape.num_heads // self.shape.num_kv_heads
        before = len(keys) - len(q)
        parts = []
        for start in range(0, len(q), QUERY_BLOCK):
            query = q[start : start + QUERY_BLOCK].unflatten(1, (-1, group)).float() * self.shape.head_dim**-0.5
            seen = before + start + len(query)
            logits = torch.einsum("mkgd,nkd->kgmn", query, keys[:seen].float())
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(before + start + 1)
            weights = logits.masked_fill_(later, float("-inf")).softmax(-1).to(self.dtype)
            parts.append(torch.einsum("kgmn,nkd->mkgd", weights, values[:seen]).flatten(1))
        return torch.cat(parts)


def run_chain(
    target: TransformersTarget,
    drafter: ChainDrafter,
    prompt: list[int],
    steps: int,
    max_new_tokens: int,
    end_ids: Iterable[int] = (),
    answer: Sequence[int] = (),
) -> Chain:
    """The target's greedy answer to a prompt of n tokens, `steps` drafts a pass; ends with one of `end_ids`.

    Args:
        answer: what another server's target answered, whose choices are taken for this one's as far as they go. So
            both have the same passes, though their roundings differ, until a drafter is at a tie.
    """
    ends = set(end_ids)
    target.begin()
    drafter.begin()
    first = target.forward(prompt, 1)
    chain = Chain([*answer[:1]] or [int(first.top)])
    states, tokens = first.states, [*prompt[1:], *chain.output_ids]
    while len(chain.output_ids) < max_new_tokens and chain.output_ids[-1] not in ends:
        drafter.extend(torch.tensor(tokens, device=target.device), states)
        drafts = drafter.draft(steps)
        position = target.length - 1
        done = target.forward([chain.output_ids[-1], *drafts], steps + 1)
        given = answer[len(chain.output_ids) :][: steps + 1]
        wanted = [*given, *done.top.tolist()[len(given) :]]
        accepted = next((k for k in range(steps) if drafts[k] != wanted[k]), steps)
        tokens = [*drafts[:accepted], wanted[accepted]]
        target.keep(position + 2 + accepted)
        states = done.states[: accepted + 1]
        chain.rounds.append(Round(position, drafts, accepted))
        chain.output_ids += until_end(tokens, ends)
    del chain.output_ids[max_new_tokens:]
    return chain


class ChainFigures:
    """Sums over rounds of any number of answers."""

    def __init__(self, steps: int) -> None:
        self.rounds = self.tokens = self.accepted = 0
        self.reached, self.right = [0] * steps, [0] * steps

    def add(self, chain: Chain) -> None:
        self.tokens += len(chain.output_ids)
        for round_ in chain.rounds:
            self.rounds += 1
            self.accepted += round_.accepted
            for k in range(min(round_.accepted + 1, len(round_.drafts))):
                self.reached[k] += 1
                self.right[k] += k < round_.accepted

    @property
    def accept_length(self) -> float:
        """Tokens that a pass of the target yields, its own included."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def metrics(self, stage: str) -> dict[str, float]:
        """`<stage>/accept_length`, `/rounds`, `/output_tokens`, and of the drafts at each position: `/cond_acc_step_k`
        (accepted where all earlier ones were; 0 where none of them was: of such a draft nothing is known),
        `/position_acc_k` (accepted in any round)."""
        named: dict[str, float] = {
            f"{stage}/accept_length": self.accept_length,
            f"{stage}/rounds": self.rounds,
            f"{stage}/output_tokens": self.tokens,
        }
        for k, (reached, right) in enumerate(zip(self.reached, self.right, strict=True)):
            named[f"{stage}/cond_acc_step_{k}"] = right / reached if reached else 0.0
            named[f"{stage}/position_acc_{k}"] = right / self.rounds if self.rounds else 0.0
        return named
