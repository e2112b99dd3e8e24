"""What training reads of the target and never changes: its embedding, its output head, and which tokens are drafted."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding, load_lm_head


@dataclass(frozen=True)
class Frozen:
    """Not parameters, buffers or part of any checkpoint; in the target's stored type, loaded once."""

    embedding: Tensor
    """[V, Ht]."""
    head: Tensor | None
    """[V, Ht]; the embedding's memory where the target ties them. Only the target's choices need all of it."""
    draft_head: Tensor
    """[D, Ht]: the head's rows for `draft_ids`."""
    draft_ids: Tensor
    """[D] int64, ascending."""

    @staticmethod
    def load(target: TargetInfo, draft_ids: Tensor) -> "Frozen":
        embedding = load_embedding(target)
        head = embedding if target.tied else load_lm_head(target)
        return Frozen(embedding, head, head[draft_ids], draft_ids)

    def to(self, device: torch.device | str) -> "Frozen":
        embedding = self.embedding.to(device)
        head = embedding if self.head is self.embedding else self.head
        head = None if head is None else head.to(device)
        return Frozen(embedding, head, self.draft_head.to(device), self.draft_ids.to(device))

    def without_head(self) -> "Frozen":
        """Once the target's choices are known: gives its memory back, unless it is the embedding's."""
        return replace(self, head=None)


def initial_drafter(shape: DrafterShape, frozen: Frozen, seed: int) -> Drafter:
    """The drafter that training begins with: random but for its output head, which begins as the target's rows."""
    drafter = Drafter(shape)
    drafter.reset(torch.Generator().manual_seed(seed))
    drafter.start_from(frozen.draft_head.cpu())
    return drafter
