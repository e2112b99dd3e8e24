"""Real acceptance without a server: the drafter drafts on its own tokens, the target checks, greedily, one sequence.

The same as SGLang's EAGLE3 workers do with topk 1: the drafter reads the target's states of accepted tokens into its
cache, then drafts a few tokens on its own states; the target runs once over all of them. Training-time test
(`drafter/ttt.py`) is this with the right tokens given, so up to the first miss both draft the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.drafter.model import Drafter, Weights
from eagle3.evaluation.forward import TransformersTarget


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
        self._keys = self.head.new_zeros(size)
        self._values = self.head.new_zeros(size)

    @torch.no_grad()
    def extend(self, tokens: Tensor, states: Tensor) -> None:
        """Reads m more positions: the target's `states [m, K*Ht]`, and at each the token after it, `tokens [m]`."""
        start = len(self._keys)
        g = self.weights.fuse(states.to(self.dtype))
        share = self._share(tokens)
        positions = torch.arange(start, start + len(tokens), device=tokens.device)
        _, key, value = self._qkv(g, share, positions)
        self._keys, self._values = torch.cat((self._keys, key)), torch.cat((self._values, value))
        self._g, self._given = g[-1:], share[-1:]

    @torch.no_grad()
    def draft(self, count: int) -> list[int]:
        """The next tokens, each the most likely after those before; leaves the cache as it is."""
        keys, values, g, given = self._keys, self._values, self._g, self._given
        drafts: list[int] = []
        for k in range(count):
            position = torch.tensor([len(self._keys) - 1 + k], device=g.device)
            q, key, value = self._qkv(g, given, position)
            if k:
                keys, values = torch.cat((keys, key)), torch.cat((values, value))
            g, normed = self.weights.after_attention(g, self._attend(q, keys, values))
            token = self.draft_ids[F.linear(normed, self.head).argmax(-1)]
            drafts.append(int(token))
            if self.shape.norm_output:
                g = normed
            given = self._share(token)
        return drafts

    def _share(self, tokens: Tensor) -> Tensor:
        return self.weights.embedding_share(self.embedding[tokens].to(self.dtype))

    def _qkv(self, g: Tensor, share: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.weights.qkv(g, share, *self.drafter.angles(position, self.dtype))

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Of one query `[1, heads, d]` over all keys: `[1, heads * d]`."""
        group = self.shape.num_heads // self.shape.num_kv_heads
        query = q[0].unflatten(0, (-1, group)).float() * self.shape.head_dim**-0.5
        logits = torch.einsum("kgd,nkd->kgn", query, keys.float())
        mixed = torch.einsum("kgn,nkd->kgd", logits.softmax(-1).to(self.dtype), values)
        return mixed.reshape(1, -1)


def run_chain(
    target: TransformersTarget,
    drafter: ChainDrafter,
    prompt: list[int],
    steps: int,
    max_new_tokens: int,
    end_ids: Iterable[int] = (),
) -> Chain:
    """The target's greedy answer to a prompt of n tokens, `steps` drafts a pass; ends with one of `end_ids`."""
    ends = set(end_ids)
    target.begin()
    drafter.begin()
    first = target.forward(prompt, 1)
    chain = Chain([int(first.top)])
    states, tokens = first.states, [*prompt[1:], int(first.top)]
    while len(chain.output_ids) < max_new_tokens and chain.output_ids[-1] not in ends:
        drafter.extend(torch.tensor(tokens, device=target.device), states)
        drafts = drafter.draft(steps)
        position = target.length - 1
        done = target.forward([chain.output_ids[-1], *drafts], steps + 1)
        wanted = done.top.tolist()
        accepted = next((k for k in range(steps) if drafts[k] != wanted[k]), steps)
        tokens = [*drafts[:accepted], wanted[accepted]]
        target.keep(position + 2 + accepted)
        states = done.states[: accepted + 1]
        end = next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))
        chain.rounds.append(Round(position, drafts, accepted))
        chain.output_ids += tokens[:end]
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
        (accepted where all earlier ones were), `/position_acc_k` (accepted in any round)."""
        named: dict[str, float] = {
            f"{stage}/accept_length": self.accept_length,
            f"{stage}/rounds": self.rounds,
            f"{stage}/output_tokens": self.tokens,
        }
        for k, (reached, right) in enumerate(zip(self.reached, self.right, strict=True)):
            named[f"{stage}/cond_acc_step_{k}"] = right / reached if reached else 0.0
            named[f"{stage}/position_acc_{k}"] = right / self.rounds if self.rounds else 0.0
        return named
