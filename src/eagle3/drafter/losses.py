"""Losses between the target's distribution p and the drafter's q over the draft vocabulary, fused with the output head.

    ce   -sum_v p log q                       cross-entropy; its gradient to the logits is q - p
    kl   sum_v p log(p / q)                   the same gradient, zero where the two agree
    lk   -log sum_v min(p, q)                 minus the log of the chance that speculative sampling accepts the token

The logits of a chunk of rows exist once, together with their gradient; nothing of the size [rows, D] is kept in fp32.
"""

from typing import Any

import torch
from torch import Tensor

KINDS = ("ce", "kl", "lk")
ROW_CHUNK = 256


def head_loss(x: Tensor, head: Tensor, p: Tensor, rows: Tensor, weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Loss of `x @ head.T` against the target.

    Args:
        x: `[m, H]` normed states.
        head: `[D, H]` output head, in its own type (fp32 masters).
        p: `[P, D]` target probabilities.
        rows: `[m]` which row of p each state is compared with.
        weight: `[m]` factor of each row's loss: 0 leaves it out.
        kind: ce, kl or lk.

    Returns:
        The sum of the losses (fp32 or fp64), and each row's most likely draft token `[m]`.
    """
    if kind not in KINDS:
        raise ValueError(f"loss.kind={kind!r}: must be one of {', '.join(KINDS)}")
    return _HeadLoss.apply(x, head, p, rows, weight, kind)  # type: ignore[no-any-return]


class _HeadLoss(torch.autograd.Function):
    """Its gradient is found in the forward, where the probabilities are at hand, and scaled in the backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, head: Tensor, p: Tensor, rows: Tensor, weight: Tensor, kind: str
    ) -> tuple[Tensor, Tensor]:
        narrow = head.to(x.dtype)
        top = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        losses = torch.empty(x.shape[0], dtype=p.dtype, device=x.device)
        wanted = any(ctx.needs_input_grad[:2])
        d_logits = x.new_empty((x.shape[0], head.shape[0])) if wanted else None
        for start in range(0, x.shape[0], ROW_CHUNK):
            part = slice(start, start + ROW_CHUNK)
            logits = (x[part] @ narrow.t()).to(p.dtype)
            top[part] = logits.argmax(-1)
            losses[part], grad = _loss_and_gradient(logits, p[rows[part]], kind)
            if d_logits is not None:
                torch.mul(grad, weight[part, None], out=d_logits[part])
        ctx.save_for_backward(x, head, d_logits)
        ctx.mark_non_differentiable(top)
        return (losses * weight).sum(), top

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, head, d_logits = ctx.saved_tensors
        d_x = (d_logits @ head.to(x.dtype)) * grads[0].to(x.dtype)
        d_head = (d_logits.t() @ x).to(head.dtype) * grads[0].to(head.dtype)
        return d_x, d_head, None, None, None, None


def _loss_and_gradient(logits: Tensor, p: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Losses `[c]` and their gradient to `logits [c, D]`, which are overwritten: the sizes ask for few passes."""
    agreement = torch.linalg.vecdot(p, logits)
    highest = logits.amax(-1, keepdim=True)
    q = logits.sub_(highest).exp_()
    total = q.sum(-1, keepdim=True)
    q.div_(total)
    if kind == "lk":
        below = q < p
        overlap = torch.where(below, q, p).sum(-1, keepdim=True)
        # d overlap / d logit_v = q_v (1[q_v < p_v] - sum_u q_u 1[q_u < p_u])
        moved = torch.where(below, q, 0.0)
        return -overlap[:, 0].log(), q.mul_(moved.sum(-1, keepdim=True)).sub_(moved).div_(overlap)
    losses = (highest + total.log())[:, 0] - agreement
    if kind == "kl":
        losses += torch.special.xlogy(p, p).sum(-1)
    return losses, q.sub_(p)
