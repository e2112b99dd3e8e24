"""SpecForge 0.2.0, offline training: its Eagle3TrainStrategy over OnlineEagle3Model, and its BF16Optimizer.

As its command line does: one document a row, padded to the longest of the batch by its collator; weights in bf16 with
fp32 masters; flex attention, and the small functions compiled that it compiles itself. Left out is its FSDP wrapper,
which one GPU does not need. On a CPU its loss kernel (Triton) cannot run: there its own reference of it is used.
"""

# pyright: reportMissingImports=false
# The peer is in a folder of its own, no dependency of ours.

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench.peers import stand_ins
from bench.peers.data import Document, Target
from bench.peers.llama import llama_config
from bench.peers.measure import unmarked
from torch import Tensor

from eagle3.drafter.model import Drafter
from eagle3.drafter.vocab import d2t, t2d


class SpecForgeTrainer:
    """Starts from `drafter`'s weights.

    Args:
        steps: of training-time test.
        attention: flex_attention (its default) or sdpa.
        dtype: of its weights and computation; its masters are fp32.
        compact: its option `compact_teacher`: no logits over the whole target vocabulary at once.
        config: more keys of the drafter's config.json.
    """

    name = "SpecForge"

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        steps: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        attention: str = "flex_attention",
        decay: float = 0.8,
        lr: float = 1e-4,
        compact: bool = False,
        config: dict[str, Any] | None = None,
    ) -> None:
        stand_ins.provide()
        from specforge.algorithms.eagle3 import model as eagle3_model
        from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
        from specforge.optimizer import BF16Optimizer
        from specforge.training.strategies.base import Eagle3TrainStrategy

        shape = drafter.shape
        if shape.num_boundaries != 3 or shape.norm_output or shape.attention_bias or drafter.embed_proj is not None:
            raise ValueError("SpecForge's drafter has 3 boundaries, the target's width, no norm_output and no bias")
        if torch.device(device).type == "cpu":
            eagle3_model.LogSoftmaxLoss = _ReferenceLoss
        self.device = torch.device(device)
        self.dtype = dtype
        keys = {"draft_vocab_size": shape.draft_vocab_size, "fc_norm": shape.fc_norm} | (config or {})
        described = llama_config(shape, **keys)
        self.draft = LlamaForCausalLMEagle3(described, attention_backend=attention)
        self.draft.load_state_dict(
            drafter.state_dict()
            | {
                "embed_tokens.weight": target.embedding,
                "t2d": t2d(target.draft_ids, shape.vocab_size),
                "d2t": d2t(target.draft_ids),
            }
        )
        self.draft.freeze_embedding()
        self.draft.to(device=self.device, dtype=dtype)
        self.model = eagle3_model.OnlineEagle3Model(self.draft, length=steps, attention_backend=attention)
        self.strategy = Eagle3TrainStrategy(
            self.model,
            target_head=_target_head(described, target.head, self.device, dtype),
            ploss_decay=decay,
            compact_teacher=compact,
        )
        self.optimizer = BF16Optimizer(self.draft, lr=lr)

    def groups(self, documents: Sequence[Document], tokens: int) -> list[list[Document]]:
        """Batches of as many rows as the longest document allows within `tokens`, padding counted."""
        rows = max(tokens // max(map(len, documents)), 1)
        return [list(documents[i : i + rows]) for i in range(0, len(documents), rows)]

    def batch(self, documents: Sequence[Document]) -> Any:
        """Its TrainBatch, on the device."""
        from specforge.algorithms.eagle3.data import normalize_offline_sample
        from specforge.data.utils import DataCollatorWithPadding
        from specforge.runtime.contracts import TrainBatch

        longest = max(map(len, documents))
        rows = [
            normalize_offline_sample(
                {
                    "aux_hidden_state": d.states[None].to(self.dtype),
                    "hidden_state": d.final[None].to(self.dtype),
                    "input_ids": d.input_ids,
                    "loss_mask": d.loss_mask.long(),
                },
                max_len=longest,
            )
            for d in documents
        ]
        tensors = {name: value.to(self.device) for name, value in DataCollatorWithPadding()(rows).items()}
        return TrainBatch(
            sample_ids=[str(i) for i in range(len(documents))],
            strategy="eagle3",
            tensors=tensors,
            metadata={"target_repr": "hidden_state"},
        )

    def forward(self, batch: Any) -> Any:
        """Its StepOutput: `loss` with the gradient, `metrics` with lists by step."""
        return self.strategy.forward_loss(batch)

    def step(self, batch: Any, mark: Callable[[str], None] = unmarked) -> None:
        """One optimiser step."""
        loss = self.forward(batch).loss
        mark("forward")
        loss.backward()
        mark("backward")
        self.optimizer.step()
        mark("optimiser")

    def gradients(self) -> dict[str, Tensor]:
        """By our names, which are also its own."""
        return {name: p.grad for name, p in self.draft.named_parameters() if p.grad is not None}


class _ReferenceLoss:
    """SpecForge's `_compute_loss`, which its kernel is tested against, in the kernel's place."""

    @staticmethod
    def apply(logits: Tensor, target_p: Tensor, position_mask: Tensor) -> Tensor:
        from specforge.core.loss import _compute_loss

        return _compute_loss(logits, target_p, position_mask)


def _target_head(config: Any, weight: Tensor, device: torch.device, dtype: torch.dtype) -> Any:
    from specforge.modeling.target.target_head import TargetHead

    with tempfile.TemporaryDirectory() as folder:  # it reads sizes from a model folder's config.json
        Path(folder, "config.json").write_text(json.dumps(config.to_dict()))
        head = TargetHead(folder)
    with torch.no_grad():
        head.fc.weight.copy_(weight)
    head.freeze_weights()
    return head.eval().to(device=device, dtype=dtype)
