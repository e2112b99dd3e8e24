"""Attention of training-time test: causal over the step-0 keys of the document, and one key of each later step.

The query of step k at position t sees the step-0 keys at positions <= t of its document and, for j = 1..k, the one key
that step j made at t itself: one softmax over both. The first part is a plain prefix attention whose log-sum-exp is
known, so the few diagonal logits are merged in afterwards; the backward needs only the merged output and log-sum-exp,
as in FlashAttention (arXiv 2205.14135, appendix B), because these determine every probability.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3.drafter.plan import Plan

QUERY_BLOCK = 128


@dataclass(frozen=True)
class Block:
    """Queries `[q0, q1)` of the active rows against keys `[k0, k1)` of the needed rows, all of one document."""

    q0: int
    q1: int
    k0: int
    k1: int
    later: Tensor
    """[q1-q0, k1-k0] bool: the key comes after the query."""


def blocks_of(plan: Plan) -> list[Block]:
    """Built once a batch, used by every step. Keys after a block's last query are left out."""
    rows = plan.active_in_needed
    blocks = []
    for segment in plan.segments:
        for q0 in range(segment.q0, segment.q1, QUERY_BLOCK):
            q1 = min(q0 + QUERY_BLOCK, segment.q1)
            k1 = int(rows[q1 - 1]) + 1
            keys = torch.arange(segment.k0, k1, device=rows.device)
            blocks.append(Block(q0, q1, segment.k0, k1, keys > rows[q0:q1, None]))
    return blocks


def attend(
    q: Tensor, k0: Tensor, v0: Tensor, later: list[tuple[Tensor, Tensor]], blocks: list[Block], scale: float
) -> Tensor:
    """Attention of one step's queries.

    Args:
        q: `[n, heads, d]`, of the active positions.
        k0, v0: `[r, kv_heads, d]`, step 0's, of the needed positions.
        later: key and value `[n, kv_heads, d]` of steps 1 to k at the active positions.
        scale: multiplies the logits.

    Returns:
        `[n, heads * d]`.
    """
    return _Attend.apply(blocks, scale, q, k0, v0, *(tensor for pair in later for tensor in pair))  # type: ignore[no-any-return]


class _Attend(torch.autograd.Function):
    """Query heads of one key head are grouped: `[n, kv, group, d]`. Logits and probabilities are in at least fp32."""

    @staticmethod
    def forward(
        ctx: Any, blocks: list[Block], scale: float, q: Tensor, k0: Tensor, v0: Tensor, *later: Tensor
    ) -> Tensor:
        n, heads, d = q.shape
        kv = k0.shape[1]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        query = q.to(wide).view(n, kv, heads // kv, d) * scale
        key, value = k0.to(wide).transpose(0, 1), v0.transpose(0, 1)
        out = torch.empty_like(query)
        lse = query.new_empty(query.shape[:3])
        for block in blocks:
            logits = _logits(query, key, block)
            highest = logits.amax(-1, keepdim=True)
            weights = logits.sub_(highest).exp_()
            total = weights.sum(-1, keepdim=True)
            product = weights.to(q.dtype).flatten(1, 2) @ value[:, block.k0 : block.k1]
            torch.div(_rows(product, weights), _rows(total, weights), out=out[block.q0 : block.q1])
            lse[block.q0 : block.q1] = _rows(highest + total.log(), weights)[..., 0]
        if later:
            diagonal = torch.stack([(query * key[:, :, None]).sum(-1) for key in later[::2]])
            merged = torch.logaddexp(lse, diagonal.logsumexp(0))
            out *= (lse - merged).exp()[..., None]
            for weight, own in zip((diagonal - merged).exp(), later[1::2], strict=True):
                out.addcmul_(weight[..., None], own[:, :, None].to(wide))
            lse = merged
        result = out.to(q.dtype)
        ctx.blocks, ctx.scale = blocks, scale
        ctx.save_for_backward(result, lse, q, k0, v0, *later)
        return result.view(n, heads * d)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        result, lse, q, k0, v0, *later = ctx.saved_tensors
        wide, narrow = lse.dtype, q.dtype
        plain = q.view(result.shape)
        query = plain.to(wide) * ctx.scale
        key, value = k0.transpose(0, 1), v0.transpose(0, 1)
        wide_key = key.to(wide)
        plain_grad = grads[0].view(result.shape)
        grad = plain_grad.to(wide)
        delta = (grad * result).sum(-1)
        d_query = torch.empty_like(query)
        d_key, d_value = torch.zeros_like(wide_key), torch.zeros_like(wide_key)
        for block in ctx.blocks:
            rows, cols = slice(block.q0, block.q1), slice(block.k0, block.k1)
            weights = _logits(query, wide_key, block).sub_(_groups(lse[rows, ..., None])).exp_()
            queries, grads_here = (_groups(x[rows]).flatten(1, 2) for x in (plain, plain_grad))
            d_value[:, cols] += weights.to(narrow).flatten(1, 2).transpose(1, 2) @ grads_here
            d_weights = (grads_here @ value[:, cols].transpose(1, 2)).view(weights.shape)
            d_logits = weights.mul_(d_weights - _groups(delta[rows, ..., None])).to(narrow)
            d_query[rows] = _rows(d_logits.flatten(1, 2) @ key[:, cols], d_logits)
            d_key[:, cols] += d_logits.flatten(1, 2).transpose(1, 2) @ queries
        d_later: list[Tensor] = []
        for own_key, own_value in zip(later[::2], later[1::2], strict=True):
            weight = ((query * own_key[:, :, None]).sum(-1) - lse).exp()
            d_logit = weight * ((grad * own_value[:, :, None]).sum(-1) - delta)
            d_query.addcmul_(d_logit[..., None], own_key[:, :, None].to(wide))
            d_later.append((d_logit[..., None] * query).sum(2).to(q.dtype))
            d_later.append((weight[..., None] * grad).sum(2).to(q.dtype))
        return (
            None,
            None,
            (d_query * ctx.scale).to(q.dtype).view(q.shape),
            (d_key * ctx.scale).transpose(0, 1).to(q.dtype),
            d_value.transpose(0, 1).to(q.dtype),
            *d_later,
        )


def _logits(query: Tensor, key: Tensor, block: Block) -> Tensor:
    """`[kv, group, queries, keys]` of `query [n, kv, group, d]` and `key [kv, r, d]`; keys to come are -inf."""
    queries = _groups(query[block.q0 : block.q1])
    logits = queries.flatten(1, 2) @ key[:, block.k0 : block.k1].transpose(1, 2)
    return logits.view(*queries.shape[:3], -1).masked_fill_(block.later, float("-inf"))


def _groups(rows: Tensor) -> Tensor:
    """`[queries, kv, group, x]` as `[kv, group, queries, x]`."""
    return rows.permute(1, 2, 0, 3)


def _rows(product: Tensor, like: Tensor) -> Tensor:
    """`[kv, group * queries, x]` back to `[queries, kv, group, x]`."""
    return product.view(*like.shape[:3], -1).permute(2, 0, 1, 3)
