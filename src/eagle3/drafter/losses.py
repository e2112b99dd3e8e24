"""Losses between the target's distribution p and the drafter's q over the draft vocabulary, fused with the output head.

    ce   -sum_v p log q                       cross-entropy; its gradient to the logits is q - p
    kl   sum_v p log(p / q)                   the same gradient, zero where the two agree
    lk   -log sum_v min(p, q)                 minus the log of the chance that speculative sampling accepts the token

The logits of a chunk of rows exist once, together with their gradient; nothing of the size [rows, D] outlives it.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eagle3.drafter.fused import fused

KINDS = ("ce", "kl", "lk")
ROW_CHUNK = 256
"""Rows whose logits are in fp32 at a time: on a CPU few enough to stay in its cache."""
GRADIENT_CHUNK = 4096
"""Rows whose logits' gradient is kept at a time, in the type of the computation, to be multiplied in one product."""
GPU_ROW_CHUNK, GPU_GRADIENT_CHUNK = 2048, 8192
"""Large enough for products at full speed: a gradient of the head is added in fp32 once for so many rows."""


class HeadLoss(NamedTuple):
    loss: Tensor
    """sum of weight * loss, with the gradient."""
    row_losses: Tensor
    """[m] unweighted, without a gradient."""
    top: Tensor
    """[m] int64: each row's most likely draft token."""


def head_loss(x: Tensor, head: Tensor, p: Tensor, rows: Tensor, weight: Tensor, kind: str) -> HeadLoss:
    """Loss of `x @ head.T` against the target, in fp32 or fp64.

    Args:
        x: `[m, H]` normed states. Overwritten where a gradient is asked for: they are large, and of no more use.
        head: `[D, H]` output head, in its own type (fp32 masters).
        p: `[P, D]` target probabilities, in any floating type.
        rows: `[m]` which row of p each state is compared with.
        weight: `[m]` factor of each row's loss: 0 leaves it out. Fp32 or fp64: losses are in its type.
        kind: ce, kl or lk.
    """
    if kind not in KINDS:
        raise ValueError(f"loss.kind={kind!r}: must be one of {', '.join(KINDS)}")
    return HeadLoss(*_HeadLoss.apply(x, head, p, rows, weight, kind))  # type: ignore[misc]


class _HeadLoss(torch.autograd.Function):
    """Its gradients are found in the forward, where the probabilities are at hand, and scaled in the backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, head: Tensor, p: Tensor, rows: Tensor, weight: Tensor, kind: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        narrow = head.to(x.dtype)
        m, D = x.shape[0], head.shape[0]
        top = torch.empty(m, dtype=torch.int64, device=x.device)
        losses = torch.empty(m, dtype=weight.dtype, device=x.device)
        wanted = any(ctx.needs_input_grad[:2])
        d_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        chunk, together = (GPU_ROW_CHUNK, GPU_GRADIENT_CHUNK) if x.is_cuda else (ROW_CHUNK, GRADIENT_CHUNK)
        d_logits = x.new_empty((min(m, together), D)) if wanted else None
        for first in range(0, m, together):
            end = min(first + together, m)
            for start in range(first, end, chunk):
                part = slice(start, min(start + chunk, end))
                written = None if d_logits is None else d_logits[start - first : part.stop - first]
                losses[part], top[part] = _score(x[part] @ narrow.t(), p, rows[part], weight[part], kind, written)
            if d_logits is not None:
                block = d_logits[: end - first]
                if d_head is not None:
                    _add_product(d_head, block.t(), x[first:end])
                torch.mm(block, narrow, out=x[first:end])
        # Not saved as tensors: they are scaled in place, and d_head becomes the parameter's gradient without a copy.
        ctx.gradients = (x, d_head)
        ctx.mark_non_differentiable(losses, top)
        return (losses * weight).sum(), losses, top

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("head_loss: a second backward; the gradients were scaled in place by the first")
        (d_x, d_head), ctx.gradients = ctx.gradients, None
        d_head = None if d_head is None else d_head.mul_(grads[0].to(d_head.dtype))
        return d_x.mul_(grads[0].to(d_x.dtype)), d_head, None, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """`total += a @ b`; on a GPU without a product in the factors' narrower type between."""
    if total.is_cuda and total.dtype != a.dtype:
        torch.addmm(total, a, b, total.dtype, out=total)
    else:
        total += a @ b


@fused({0: (0,), 1: (0,), 2: (0,), 3: (0,), 5: (0,)})
def _score(
    product: Tensor, p: Tensor, rows: Tensor, weight: Tensor, kind: str, written: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Losses `[c]` and first choices `[c]` of logits `product [c, D]`; their weighted gradient is left in `written`.

    `p [P, D]` are all targets' probabilities, `rows [c]` which of them; `weight [c]` sets the type of the arithmetic.
    """
    top = product.argmax(-1)  # first: what follows overwrites the product, unless it is narrow
    losses, grad = _loss_and_gradient(product.to(weight.dtype), p[rows].to(weight.dtype), kind)
    if written is not None:
        written.copy_(grad.mul_(weight[:, None]))
    return losses, top


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
