"""The draft vocabulary: the D target tokens that occur most often in responses."""

import torch
from torch import Tensor


def count_responses(input_ids: Tensor, loss_mask: Tensor, vocab_size: int) -> Tensor:
    """How often each target token is a response token: `[V]` int64. Counts of several shards may be added."""
    return torch.bincount(input_ids[loss_mask.bool()].long(), minlength=vocab_size)


def choose_draft_ids(counts: Tensor, draft_vocab_size: int) -> Tensor:
    """The D most frequent target ids, ascending: `[D]` int64.

    Of equally frequent tokens the lowest ids are taken, so that the choice is the same everywhere; where fewer than D
    were seen at all, the rest are the lowest unseen ids.
    """
    if draft_vocab_size > counts.shape[0]:
        raise ValueError(f"{draft_vocab_size} draft tokens of {counts.shape[0]}")
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[:draft_vocab_size].sort().values


def coverage(counts: Tensor, draft_ids: Tensor) -> float:
    """Share of the response tokens that the drafter can propose."""
    return float(counts[draft_ids].sum() / counts.sum().clamp(min=1))


def t2d(draft_ids: Tensor, vocab_size: int) -> Tensor:
    """`[V]` bool: which target tokens are in the draft vocabulary."""
    mask = torch.zeros(vocab_size, dtype=torch.bool, device=draft_ids.device)
    mask[draft_ids] = True
    return mask


def d2t(draft_ids: Tensor) -> Tensor:
    """`[D]` int64 **offsets**: draft token i is target token i + d2t[i]."""
    return draft_ids - torch.arange(draft_ids.shape[0], device=draft_ids.device)


def draft_ids_of(offsets: Tensor) -> Tensor:
    """The inverse of `d2t`."""
    return offsets + torch.arange(offsets.shape[0], device=offsets.device)
