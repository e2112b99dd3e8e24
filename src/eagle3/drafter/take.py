"""Rows of a tensor, each at most once."""

from typing import Any

import torch
from torch import Tensor


def take(source: Tensor, rows: Tensor) -> Tensor:
    """`source.index_select(0, rows)` of rows `[m]` that are all different.

    So that their gradients can be put where they belong: added, as torch does, each is an atomic operation on a GPU.
    """
    return _Take.apply(source, rows)  # type: ignore[return-value]


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = source.shape[0]
        return source.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        (grad,) = grads
        return grad.new_zeros((ctx.count, *grad.shape[1:])).index_copy_(0, rows, grad), None
