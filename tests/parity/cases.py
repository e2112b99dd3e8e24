"""One small drafter and its documents, in our own words: fp64 for us, the same values in fp32 for a peer."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from bench.peers.data import Document, Target, pack
from bench.peers.our_trainer import forward
from tests.drafter.cases import SHAPE, make_drafter, setting_of
from tests.drafter.reference import Expected, training_time_test
from torch import Tensor

from eagle3.drafter.model import Drafter, rms_norm
from eagle3.drafter.ttt import TttResult

PROMPT, ANSWER = 0, 1
STEPS, DECAY = 4, 0.8


@dataclass(frozen=True)
class Case:
    drafter: Drafter
    """fp64, of values that fp32 holds."""
    target: Target
    documents: list[Document]

    @property
    def known(self) -> list[Tensor]:
        """Of each document, where the target's first choice is in the draft vocabulary: [S] bool."""
        tops = [(d.final @ self.target.head.t()).argmax(-1) for d in self.documents]
        return [torch.isin(top, self.target.draft_ids) for top in tops]

    def in_fp32(self) -> tuple[Drafter, Target]:
        """What a peer starts from."""
        drafter = Drafter(self.drafter.shape)
        drafter.load_state_dict(self.drafter.state_dict())
        target = self.target
        return drafter, Target(target.embedding.float(), target.head.float(), target.norm.float(), target.draft_ids)

    def given(self, masks: list[Tensor] | None = None) -> list[Document]:
        """Documents in fp32, with a peer's own loss masks where it needs others."""
        masks = masks or [d.loss_mask for d in self.documents]
        return [
            Document(d.input_ids, mask, d.states.float(), d.before_norm.float(), d.final.float())
            for d, mask in zip(self.documents, masks, strict=True)
        ]

    def ours(self, weights: Tensor, kind: str = "ce") -> tuple[TttResult, dict[str, Tensor]]:
        """Our fast path and its gradients, for these factors of the steps' summed losses."""
        self.drafter.zero_grad()
        found = forward(self.drafter, pack(self.documents), self.target, weights.double(), kind)
        found.loss.backward()
        return found, {n: p.grad.clone() for n, p in self.drafter.named_parameters() if p.grad is not None}

    def defined(self, norm_output: bool | None = None) -> Expected:
        """The plain definition, for its logits."""
        setting = setting_of(self.drafter)
        if norm_output is not None:
            setting = replace(setting, norm_output=norm_output)
        weights = {name: p.detach() for name, p in self.drafter.named_parameters()}
        documents = [vars(d) for d in self.documents]
        target = self.target
        return training_time_test(
            weights, setting, documents, target.embedding, target.head, target.draft_ids, STEPS, "ce"
        )


def make_case(masks: list[list[int]], seed: int = 0, **changes: Any) -> Case:
    """One document per mask."""
    shape = replace(SHAPE, **changes)
    generator = torch.Generator().manual_seed(seed)

    def randn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).double()

    drafter = make_drafter(shape, seed + 1).float().double()
    norm = (1 + 0.3 * randn(shape.target_hidden_size)).float().double()
    documents = []
    for mask in masks:
        before = randn(len(mask), shape.target_hidden_size)
        final = rms_norm(before, norm, shape.rms_norm_eps).float().double()
        ids = torch.randint(shape.vocab_size, (len(mask),), generator=generator)
        states = randn(len(mask), shape.num_boundaries * shape.target_hidden_size)
        documents.append(Document(ids, torch.tensor(mask, dtype=torch.bool), states, before, final))
    draft_ids = torch.randperm(shape.vocab_size, generator=generator)[: shape.draft_vocab_size].sort().values
    size = (shape.vocab_size, shape.target_hidden_size)
    return Case(drafter, Target(randn(*size), randn(*size), norm, draft_ids), documents)


def nudged(documents: list[Document], index: int, at: int) -> list[Document]:
    """The same documents, with another final state at one token of one of them."""
    changed = list(documents)
    document = changed[index]
    before, final = document.before_norm.clone(), document.final.clone()
    before[at], final[at] = -before[at], -final[at]  # the norm keeps the sign
    changed[index] = replace(document, before_norm=before, final=final)
    return changed


def assert_gradients(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    """Every weight's, to `tolerance` of its largest component."""
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        scale = float(gradient.abs().max())
        assert scale > 0, name
        error = float((found[name].double() - gradient).abs().max())
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"
