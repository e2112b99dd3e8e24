"""Training-time test (EAGLE-3, arXiv 2503.01840): the drafter learns on its own states, for as many steps as it drafts.

With g*_t the target's final state and a_t its captured states, T_t = lm_head_target(g*_t) are the logits for x_{t+1}.
Step k at position t takes the embedding of x_{t+1+k} and the state g^k_t (g^0 = fc(a_t)), and predicts x_{t+2+k}: its
target is softmax of T_{t+1+k} over the draft vocabulary. Everything is summed, never averaged, so that ranks and
accumulated batches can be normalised by their common number of scored positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eagle3.drafter.attention import attend
from eagle3.drafter.batch import Batch
from eagle3.drafter.fused import fused
from eagle3.drafter.losses import head_loss
from eagle3.drafter.model import Drafter, Weights
from eagle3.drafter.plan import Plan
from eagle3.drafter.prefix import prefix_of
from eagle3.drafter.rope import rotate
from eagle3.drafter.take import take

VOCAB_CHUNK = 8192
TARGET_CHUNK = 2048
"""Rows whose target logits are in fp32 at a time."""


@dataclass(frozen=True)
class TttResult:
    """Sums over the positions of one batch, each `[steps]` but for `loss`."""

    loss: Tensor
    """[]: sum_k step_weights_k loss_sum_k, with the gradient."""
    loss_sum: Tensor
    """Losses of the scored positions whose target token is in the draft vocabulary; without a gradient."""
    valid: Tensor
    """int64: scored positions, in or out of the draft vocabulary."""
    correct: Tensor
    """int64: of these, where the drafter's first choice is the target's over its whole vocabulary."""
    reached: Tensor
    """int64: scored positions of step k where every earlier step was scored and correct (step 0: all)."""
    accepted: Tensor
    """int64: of these, where step k is correct too; `accepted / reached` is the conditional acceptance of step k."""
    in_vocabulary: Tensor
    """int64: scored positions whose target token is in the draft vocabulary."""
    choices: Tensor
    """[sum of valid] int64: the drafter's first choice, as a target token, at each scored position; step by step,
    ascending by position."""


def step_weights(decay: float, counts: Tensor) -> Tensor:
    """What each step's summed loss counts: decay^k / counts_k, `[steps]` float64.

    `counts [steps]` are the scored positions over all ranks and accumulated batches (`valid_counts`).
    """
    steps = torch.arange(counts.shape[0], device=counts.device, dtype=torch.float64)
    return decay**steps / counts.clamp(min=1)


@torch.no_grad()
def target_argmax(final: Tensor, target_head: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The target's most likely token over its whole vocabulary, `[T]` int64, of `final [T, Ht]`, `target_head [V, Ht]`.

    It depends on the data alone: compute it once per dataset and pass it as `Batch.target_top`.
    """
    dtype = dtype or target_head.dtype
    final = final.to(dtype)
    best = torch.full((final.shape[0],), float("-inf"), dtype=dtype, device=final.device)
    token = torch.zeros(final.shape[0], dtype=torch.int64, device=final.device)
    for start in range(0, target_head.shape[0], VOCAB_CHUNK):
        value, index = (final @ target_head[start : start + VOCAB_CHUNK].to(dtype).t()).max(-1)
        token = torch.where(value > best, index + start, token)
        best = torch.maximum(value, best)
    return token


def compute_dtype(drafter: Drafter) -> torch.dtype:
    """Autocast's type where autocast is on, else the parameters' own."""
    weight = drafter.lm_head.weight
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def run_ttt(
    drafter: Drafter,
    batch: Batch,
    embedding: Tensor,
    draft_head: Tensor,
    draft_ids: Tensor,
    steps: int,
    kind: str = "ce",
    plan: Plan | None = None,
    weights: Tensor | None = None,
) -> TttResult:
    """All steps over one packed batch.

    Args:
        embedding: `[V, Ht]` the target's, frozen, in any floating type.
        draft_head: `[D, Ht]` the target's output head, frozen, in any floating type: its rows for `draft_ids`.
        draft_ids: `[D]` int64, ascending: the target tokens of the draft vocabulary.
        steps: N of training-time test.
        kind: ce, kl or lk (`losses.py`).
        plan: `Plan.of(batch, steps)`, where a data worker has built it.
        weights: `[steps]` factors of the steps' losses in `loss` (`step_weights`); by default 1.
    """
    plan = plan or Plan.of(batch, steps)
    dtype = compute_dtype(drafter)
    with torch.autocast(embedding.device.type, enabled=False):
        target = _Target.of(batch, draft_head, draft_ids, plan, dtype)
        states = step_states(drafter, Weights.of(drafter, dtype), batch, embedding, plan, dtype)
        rows = torch.cat(plan.target_rows)
        known = target.known[rows]
        sizes = [len(part) for part in plan.target_rows]
        ones = torch.ones(steps, dtype=_wide(dtype), device=rows.device)
        factor = ones if weights is None else weights.to(ones)
        weight = torch.cat([factor[k].expand(size) for k, size in enumerate(sizes)]) * known
        # All steps at once: the head's gradient is summed in one place.
        found = head_loss(torch.cat(list(states)), drafter.lm_head.weight, target.p, rows, weight, kind)
        choices = draft_ids[found.top]
        right = known & (choices == target.top[rows])
        losses = [part.sum() for part in (found.row_losses * known).split(sizes)]
        drafted = list(zip(right.split(sizes), known.split(sizes), strict=True))
        return _result(plan, found.loss, losses, drafted, choices)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class _Target:
    p: Tensor
    """[P, D] probabilities over the draft vocabulary, found in at least fp32, kept in the type of the computation."""
    top: Tensor
    """[P] arg-max over the whole vocabulary."""
    known: Tensor
    """[P] bool: that token is in the draft vocabulary."""

    @staticmethod
    @torch.no_grad()
    def of(batch: Batch, draft_head: Tensor, draft_ids: Tensor, plan: Plan, dtype: torch.dtype) -> "_Target":
        if batch.target_top is None:
            raise ValueError("the batch lacks target_top: compute it with target_argmax, once a dataset")
        final = batch.final.index_select(0, plan.targets)
        top = batch.target_top[plan.targets]
        place = torch.searchsorted(draft_ids, top).clamp(max=draft_ids.shape[0] - 1)
        p = final.new_empty((final.shape[0], draft_head.shape[0]), dtype=dtype)
        for start in range(0, final.shape[0], TARGET_CHUNK):
            part = slice(start, start + TARGET_CHUNK)
            _softmax(_logits(final[part], draft_head, dtype), p[part])
        return _Target(p=p, top=top, known=draft_ids[place] == top)


def _logits(final: Tensor, head: Tensor, dtype: torch.dtype) -> Tensor:
    """`final @ head.T` in at least fp32; on a GPU from narrow factors, which its products sum in fp32 anyway."""
    if final.is_cuda and dtype != _wide(dtype):
        return torch.mm(final.to(dtype), head.to(dtype).t(), out_dtype=torch.float32)
    return final.to(_wide(dtype)) @ head.to(_wide(dtype)).t()


@fused({0: (0,), 1: (0,)})
def _softmax(logits: Tensor, written: Tensor) -> None:
    """Leaves the softmax of `logits [c, D]` in `written [c, D]`."""
    written.copy_(logits.softmax(-1))


def step_states(
    drafter: Drafter, weights: Weights, batch: Batch, embedding: Tensor, plan: Plan, dtype: torch.dtype
) -> Iterator[Tensor]:
    """Yields each step's output-normed states `[m_k, H]` at its scored rows."""
    shape = drafter.shape
    active, needed = plan.active, plan.needed
    # Steps past a document's end, which are not scored, may read any token: past the last one, token 0.
    ids = F.pad(batch.input_ids, (0, plan.steps))
    share = weights.embedding_share(embedding[ids].to(dtype))
    scale = shape.head_dim**-0.5
    everything = len(needed) == len(batch.states)
    g = weights.fuse((batch.states if everything else batch.states.index_select(0, needed)).to(dtype))
    caches: list[_Cache] = []
    at_needed = drafter.angles(batch.position[needed], dtype)
    if single := len(weights.layers) == 1:
        normed = weights.normed(g)
    else:
        g, normed, caches = _inner_step_0(weights, g, take(share, needed + 1), at_needed, plan, scale)
    last = weights.layers[-1]
    q_weight, kv_weight = last.qkv_hidden.split((shape.q_size, 2 * shape.kv_size))
    kv = F.linear(normed, kv_weight)
    if single:
        kv = kv + take(share, needed + 1)[:, shape.q_size :]
    k0, v0 = kv.unflatten(-1, (2, shape.num_kv_heads, -1)).unbind(1)
    k0 = rotate(k0, *at_needed)
    caches.append(_Cache(k0, v0, []))
    prefix = prefix_of(plan.queries, k0)
    # From here on, only what some step is scored at.
    g, normed = (take(rows, plan.active_in_needed) for rows in (g, normed))
    for k in range(plan.steps):
        angles = drafter.angles(batch.position[active] + k, dtype)
        if k == 0:
            q = F.linear(normed, q_weight)
            if single:
                q = q + take(share, active + 1)[:, : shape.q_size]
            q = rotate(q.unflatten(-1, (shape.num_heads, -1)), *angles)
            g, normed = last.after_attention(g, attend(q, k0, v0, [], prefix, scale))
        else:
            x, given = g, take(share, active + 1 + k)
            for layer, cache in zip(weights.layers, caches, strict=True):
                q, key, value = layer.qkv(x, given, *angles)
                cache.later.append((key, value))
                g, normed = layer.after_attention(g, attend(q, cache.k0, cache.v0, cache.later, prefix, scale))
                x, given = normed, None
        yield take(normed, plan.scored[k])
        if shape.norm_output:
            g = normed


@dataclass(frozen=True)
class _Cache:
    """A layer's keys and values."""

    k0: Tensor
    """[r, kv_heads, d]: step 0's, of the needed rows."""
    v0: Tensor
    later: list[tuple[Tensor, Tensor]]
    """Of each step since, at the active rows."""


def _inner_step_0(
    weights: Weights, g: Tensor, given: Tensor, angles: tuple[Tensor, Tensor], plan: Plan, scale: float
) -> tuple[Tensor, Tensor, list[_Cache]]:
    """Step 0 of all layers but the last, from `g [r, H]`: un-normed and normed `[r, H]`, and the layers' caches.

    At all needed rows, as each is a key of the next layer.
    """
    prefix, caches = None, list[_Cache]()
    x, added = g, given
    for layer in weights.layers[:-1]:
        q, k0, v0 = layer.qkv(x, added, *angles)
        prefix = prefix or prefix_of(plan.needed_queries, k0)
        caches.append(_Cache(k0, v0, []))
        g, x = layer.after_attention(g, attend(q, k0, v0, [], prefix, scale))
        added = None
    return g, x, caches


def _result(
    plan: Plan, loss: Tensor, losses: list[Tensor], drafted: list[tuple[Tensor, Tensor]], choices: Tensor
) -> TttResult:
    reached = plan.valid[0, plan.active]
    counts: dict[str, list[Tensor]] = {"correct": [], "reached": [], "accepted": [], "in_vocabulary": []}
    for k, (right, known) in enumerate(drafted):
        correct = torch.zeros_like(reached)
        correct[plan.scored[k]] = right
        reached = reached & plan.valid[k, plan.active]
        counts["correct"].append(right.sum())
        counts["in_vocabulary"].append(known.sum())
        counts["reached"].append(reached.sum())
        reached = reached & correct
        counts["accepted"].append(reached.sum())
    return TttResult(
        loss=loss,
        loss_sum=torch.stack(losses),
        valid=plan.counts,
        choices=choices,
        **{name: torch.stack(list_) for name, list_ in counts.items()},
    )
