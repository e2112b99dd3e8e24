"""Attention of training-time test: causal over the step-0 keys of the document, and one key of each later step.

The query of step k at position t sees the step-0 keys at positions <= t of its document and, for j = 1..k, the one key
that step j made at t itself: one softmax over both. The first part is a plain prefix attention whose log-sum-exp is
known (`prefix.py`), so the few diagonal logits are merged in afterwards.
"""

from typing import Any

import torch
from torch import Tensor

from eagle3.drafter.fused import fused
from eagle3.drafter.prefix import Prefix


def attend(
    q: Tensor, k0: Tensor, v0: Tensor, later: list[tuple[Tensor, Tensor]], prefix: Prefix, scale: float
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
    tensors = (tensor for pair in later for tensor in pair)
    return _Attend.apply(prefix, scale, q, k0, v0, *tensors).flatten(1)  # type: ignore[union-attr]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prefix: Prefix, scale: float, q: Tensor, k0: Tensor, v0: Tensor, *later: Tensor) -> Tensor:
        out, lse, kept = prefix.forward(q, k0, v0, scale)
        if later:
            out, lse = _merge(q, torch.stack(later[::2]), torch.stack(later[1::2]), out, lse, scale)
        else:
            out = out.to(q.dtype)
        ctx.prefix, ctx.scale = prefix, scale
        ctx.save_for_backward(out, lse, q, k0, v0, *later, *kept)
        ctx.later = len(later)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, q, k0, v0, *rest = ctx.saved_tensors
        later, kept = rest[: ctx.later], rest[ctx.later :]
        grad = grads[0].contiguous()
        d_q, d_k0, d_v0 = ctx.prefix.backward(grad, q, k0, v0, out, lse, ctx.scale, kept)
        d_later: list[Tensor] = []
        if later:
            keys, values = torch.stack(later[::2]), torch.stack(later[1::2])
            d_q, d_keys, d_values = _diagonal_gradients(q, keys, values, out, lse, grad, d_q, ctx.scale)
            d_later = [each for pair in zip(d_keys.unbind(), d_values.unbind(), strict=True) for each in pair]
        return None, None, d_q.to(q.dtype), d_k0.to(q.dtype), d_v0.to(q.dtype), *d_later


def _merge(q: Tensor, keys: Tensor, values: Tensor, out: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Adds one key and value of each of k steps, `[k, n, kv_heads, d]`, to `out [n, heads, d]` and `lse [n, heads]`.

    The result is in q's type. In two parts: compiled as one, weights times values would be written to memory.
    """
    diagonal, after = _diagonal_logits(q, keys, lse, scale)
    return _mix(diagonal, values, out, lse, after), after


@fused({0: (0,), 1: (0, 1), 2: (0,)})
def _diagonal_logits(q: Tensor, keys: Tensor, lse: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Logits of the k keys at the same position, `[k, n, kv_heads, group]`, and the log-sum-exp with them."""
    _, n, kv, d = keys.shape
    grouped = (n, kv, q.shape[1] // kv)
    query = q.view(*grouped, d).to(lse.dtype) * scale
    diagonal = (query * keys[:, :, :, None].to(lse.dtype)).sum(-1)
    after = torch.logaddexp(lse.view(grouped), diagonal.logsumexp(0))
    return diagonal, after.view(lse.shape)


@fused({0: (0, 1), 1: (0, 1), 2: (0,), 3: (0,), 4: (0,)})
def _mix(diagonal: Tensor, values: Tensor, out: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """`out`, whose log-sum-exp was `before`, with the k values of these logits, when it is `after`."""
    grouped = diagonal.shape[1:]
    before, after = before.view(grouped), after.view(grouped)
    own = ((diagonal - after).exp()[..., None] * values[:, :, :, None].to(after.dtype)).sum(0)
    merged = out.view(own.shape) * (before - after).exp()[..., None] + own
    return merged.view(out.shape).to(values.dtype)


@fused({0: (0,), 1: (0, 1), 2: (0, 1), 3: (0,), 4: (0,), 5: (0,), 6: (0,)})
def _diagonal_gradients(
    q: Tensor, keys: Tensor, values: Tensor, out: Tensor, lse: Tensor, grad: Tensor, d_q: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What the keys of later steps add to `d_q [n, heads, d]`, and the gradients to them and their values."""
    _, n, kv, d = keys.shape
    grouped = (n, kv, q.shape[1] // kv)
    query = q.view(*grouped, d).to(lse.dtype) * scale
    key, value = keys[:, :, :, None].to(lse.dtype), values[:, :, :, None].to(lse.dtype)
    wide_grad = grad.view(*grouped, d).to(lse.dtype)
    delta = (wide_grad * out.view(*grouped, d)).sum(-1)
    weight = ((query * key).sum(-1) - lse.view(grouped)).exp()
    d_logit = weight * ((wide_grad * value).sum(-1) - delta)
    d_query = d_q.view(*grouped, d) + (d_logit[..., None] * key).sum(0) * scale
    d_keys = (d_logit[..., None] * query).sum(3).to(q.dtype)
    d_values = (weight[..., None] * wide_grad).sum(3).to(q.dtype)
    return d_query.view(q.shape).to(q.dtype), d_keys, d_values
