"""Small random drafters and packed batches, in float64."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from tests.drafter.reference import Expected, Setting, training_time_test
from torch import Tensor

from eagle3.drafter.batch import Batch, valid_counts
from eagle3.drafter.model import Drafter
from eagle3.drafter.rope import attention_factor
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.ttt import TttResult, run_ttt, step_weights, target_argmax

SHAPE = DrafterShape(
    hidden_size=12,
    intermediate_size=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    target_hidden_size=12,
    num_boundaries=3,
    vocab_size=40,
    draft_vocab_size=16,
    rope_theta=100.0,
    context_length=64,
)


@dataclass(frozen=True)
class Case:
    drafter: Drafter
    documents: list[dict[str, Tensor]]
    embedding: Tensor
    target_head: Tensor
    draft_ids: Tensor

    @property
    def batch(self) -> Batch:
        return pack(self.documents)

    def run(
        self,
        steps: int,
        kind: str = "ce",
        batch: Batch | None = None,
        counts: Tensor | None = None,
        decay: float = 0.8,
        **options: Any,
    ) -> TttResult:
        """`counts` normalise the loss; by default the batch's own."""
        batch = batch or self.batch
        if batch.target_top is None:
            batch = replace(batch, target_top=target_argmax(batch.final, self.target_head))
        if counts is None:
            counts = valid_counts(batch.loss_mask, batch.document, steps)
        return run_ttt(
            self.drafter,
            batch,
            self.embedding,
            self.target_head[self.draft_ids],
            self.draft_ids,
            steps,
            kind=kind,
            weights=step_weights(decay, counts),
            **options,
        )

    def expected(self, steps: int, kind: str = "ce") -> tuple[Expected, dict[str, Tensor]]:
        """The reference's figures, and the leaves to take gradients of."""
        weights = {name: p.detach().clone().requires_grad_() for name, p in self.drafter.named_parameters()}
        tables = (self.embedding, self.target_head, self.draft_ids)
        found = training_time_test(weights, setting_of(self.drafter), self.documents, *tables, steps, kind)
        return found, weights


def setting_of(drafter: Drafter) -> Setting:
    """The drafter's switches, in the reference's words."""
    shape = drafter.shape
    return Setting(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        eps=shape.rms_norm_eps,
        angles=drafter.get_buffer("frequencies").double(),
        stretch=attention_factor(shape.rope_scaling),
        fc_norm=shape.fc_norm,
        norm_output=shape.norm_output,
        num_layers=shape.num_layers,
    )


def pack(documents: list[dict[str, Tensor]]) -> Batch:
    lengths = [len(d["input_ids"]) for d in documents]
    return Batch(
        input_ids=torch.cat([d["input_ids"] for d in documents]),
        loss_mask=torch.cat([d["loss_mask"] for d in documents]),
        document=torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths)),
        position=torch.cat([torch.arange(n) for n in lengths]),
        states=torch.cat([d["states"] for d in documents]),
        final=torch.cat([d["final"] for d in documents]),
        sample_ids=torch.arange(len(lengths)),
    )


def make_drafter(shape: DrafterShape, seed: int = 0) -> Drafter:
    generator = torch.Generator().manual_seed(seed)
    drafter = Drafter(shape).double()
    with torch.no_grad():
        for parameter in drafter.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            # Far from their initial values, so that a norm or bias that is not used shows.
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else 0.3 * noise)
    return drafter


def make_case(masks: list[list[int]], seed: int = 0, follow: float = 0.0, **changes: Any) -> Case:
    """One document per mask. `follow`: share of the target's choices that are made the drafter's own easy ones."""
    shape = replace(SHAPE, **changes)
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    captured = shape.num_boundaries * shape.target_hidden_size
    documents = [
        {
            "input_ids": torch.randint(shape.vocab_size, (len(mask),), generator=generator),
            "loss_mask": torch.tensor(mask, dtype=torch.bool),
            "states": randn(len(mask), captured),
            "final": randn(len(mask), shape.target_hidden_size),
        }
        for mask in masks
    ]
    draft_ids = torch.randperm(shape.vocab_size, generator=generator)[: shape.draft_vocab_size].sort().values
    case = Case(
        drafter=make_drafter(shape, seed + 1),
        documents=documents,
        embedding=randn(shape.vocab_size, shape.target_hidden_size),
        target_head=randn(shape.vocab_size, shape.target_hidden_size),
        draft_ids=draft_ids,
    )
    if follow:
        _make_followable(case, follow, generator)
    return case


def _make_followable(case: Case, share: float, generator: torch.Generator) -> None:
    """Points final states at what the drafter would say, so that long accepted chains occur."""
    with torch.no_grad():
        case.drafter.lm_head.weight[0] *= 50  # the drafter mostly says its first token, or never
    wanted = case.target_head[case.draft_ids[0]] * 20
    for document in case.documents:
        chosen = torch.rand(len(document["input_ids"]), generator=generator) < share
        document["final"][chosen] = wanted
