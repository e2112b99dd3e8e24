"""What training-time test reads: documents packed one after the other, without padding between them."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """T tokens of n documents. Padding, where a caller needs it, is one more document with an empty loss mask."""

    input_ids: Tensor
    """[T] int64."""
    loss_mask: Tensor
    """[T] bool: response tokens."""
    document: Tensor
    """[T] int32, ascending: the document a token belongs to. Nothing crosses from one to another."""
    position: Tensor
    """[T] int64: 0, 1, ... inside each document."""
    states: Tensor
    """[T, K*Ht]: the captured states beside each other, ascending by boundary."""
    final: Tensor
    """[T, Ht]: the target's last state after its final norm, so that logits are `final @ lm_head.T`."""
    sample_ids: Tensor
    """[n] int64: which samples these are, to name them in an error."""
    target_top: Tensor | None = None
    """[T] int64: the target's arg-max over its whole vocabulary, `target_argmax(final)`; training needs it."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            moved[field.name] = value if value is None else value.to(device, non_blocking=non_blocking)
        return Batch(**moved)


def valid_positions(loss_mask: Tensor, document: Tensor, steps: int) -> Tensor:
    """Where step k at position t is scored: `[steps, T]` bool.

    Step k at t predicts x_{t+2+k}: it counts where *that* token is a response token of the same document.
    """
    tokens = loss_mask.shape[0]
    valid = loss_mask.new_zeros((steps, tokens), dtype=torch.bool)
    for k in range(min(steps, max(tokens - 2, 0))):
        ahead = k + 2
        valid[k, :-ahead] = loss_mask[ahead:].bool() & (document[ahead:] == document[:-ahead])
    return valid


def valid_counts(loss_mask: Tensor, document: Tensor, steps: int) -> Tensor:
    """Scored positions of each step, `[steps]` int64: known before the forward, to normalise by over ranks."""
    return valid_positions(loss_mask, document, steps).sum(-1)
