"""What every trainer is given: documents, and the target's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.drafter.batch import Batch
from eagle3.drafter.model import rms_norm
from eagle3.drafter.shape import DrafterShape


@dataclass(frozen=True)
class Document:
    """One conversation of S tokens and what the target made of it."""

    input_ids: Tensor
    """[S] int64."""
    loss_mask: Tensor
    """[S] bool: response tokens."""
    states: Tensor
    """[S, K*Ht]."""
    before_norm: Tensor
    """[S, Ht]: the target's last state before its final norm, which speculators reads."""
    final: Tensor
    """[S, Ht]: behind that norm, which SpecForge and we read."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Target:
    """The target's own, all frozen."""

    embedding: Tensor
    """[V, Ht]."""
    head: Tensor
    """[V, Ht]."""
    norm: Tensor
    """[Ht]: weight of the final norm."""
    draft_ids: Tensor
    """[D] int64, ascending."""


def random_target(
    shape: DrafterShape, dtype: torch.dtype, seed: int = 0, made_on: torch.device | str = "cpu"
) -> Target:
    """On the CPU; `made_on` a GPU the large tables take no time."""
    generator = torch.Generator().manual_seed(seed)
    there = torch.Generator(made_on).manual_seed(seed + 1)
    size = (shape.vocab_size, shape.target_hidden_size)

    def table() -> Tensor:
        return torch.randn(size, generator=there, device=made_on, dtype=dtype).cpu()

    return Target(
        embedding=table(),
        head=table() / shape.target_hidden_size**0.5,
        norm=(1 + 0.2 * torch.randn(shape.target_hidden_size, generator=generator)).to(dtype),
        draft_ids=torch.randperm(shape.vocab_size, generator=generator)[: shape.draft_vocab_size].sort().values,
    )


def random_documents(
    shape: DrafterShape, target: Target, lengths: Sequence[int], answers: float, dtype: torch.dtype, seed: int = 1
) -> list[Document]:
    """Documents whose last `answers` (a share) is the response. Their states are slices of one common pool, so that
    many fit in memory."""
    generator = torch.Generator().manual_seed(seed)
    rows = 2 * max(lengths)
    width = shape.target_hidden_size
    states = torch.randn(rows, shape.num_boundaries * width, generator=generator).to(dtype)
    before = torch.randn(rows, width, generator=generator).to(dtype)
    final = rms_norm(before, target.norm, shape.rms_norm_eps)
    documents = []
    for length in lengths:
        start = int(torch.randint(rows - length + 1, (1,), generator=generator))
        part = slice(start, start + length)
        ids = torch.randint(shape.vocab_size, (length,), generator=generator)
        mask = torch.arange(length) >= round((1 - answers) * length)
        documents.append(Document(ids, mask, states[part], before[part], final[part]))
    return documents


def pack(documents: Sequence[Document]) -> Batch:
    """As our own loader packs them: one after the other, no padding."""
    lengths = torch.tensor([len(d) for d in documents])
    return Batch(
        input_ids=torch.cat([d.input_ids for d in documents]),
        loss_mask=torch.cat([d.loss_mask for d in documents]),
        document=torch.repeat_interleave(torch.arange(len(documents), dtype=torch.int32), lengths),
        position=torch.cat([torch.arange(len(d)) for d in documents]),
        states=torch.cat([d.states for d in documents]),
        final=torch.cat([d.final for d in documents]),
        sample_ids=torch.arange(len(documents)),
    )


def real_lengths(tokens: int, mean: int = 500, longest: int = 2048, seed: int = 0) -> list[int]:
    """Lengths of conversations, `tokens` together: log-normal, most of them short and one in fifty as long as is
    allowed; 1.02 makes up for what that cut takes off the mean."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = []
    while sum(found) < tokens:
        length = float(1.02 * mean * torch.exp(0.8 * torch.randn((), generator=generator) - 0.32))
        found.append(min(max(round(length), 16), longest))
    return found
