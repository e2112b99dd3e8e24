"""speculators 0.9.0: its Eagle3DraftModel, its packing and collation, and its AdamW over fp32 weights under autocast.

As its trainer does: documents packed by its sampler into one row of a fixed length, flex attention, the whole forward
compiled on a GPU, fused loss kernels (on a CPU its eager losses), gradients clipped to 1. Its lm_head is made to train,
which it has no option for.
"""

# pyright: reportMissingImports=false
# The peer is in a folder of its own, no dependency of ours.

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from bench.peers import stand_ins
from bench.peers.data import Document, Target
from bench.peers.llama import llama_config
from bench.peers.measure import unmarked
from torch import Tensor

from eagle3.drafter.model import Drafter
from eagle3.drafter.vocab import d2t, t2d


class SpeculatorsTrainer:
    """Starts from `drafter`'s weights.

    Args:
        steps: of training-time test.
        dtype: of autocast; float32 turns autocast off.
        attention: simple_flex_attention (its default), sdpa or eager.
        loss: kl_div (its default), nla, ...
        rows: length of its packed row; null is just what the documents need.
        kernels: its `loss_implementation`, fused (its default) or eager; null is eager on a CPU, which has no other.
        config: more keys of its Eagle3SpeculatorConfig.
    """

    name = "speculators"

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        steps: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        attention: str = "simple_flex_attention",
        decay: float = 0.8,
        lr: float = 1e-4,
        loss: str = "kl_div",
        rows: int | None = None,
        train_head: bool = True,
        kernels: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        stand_ins.provide()
        from speculators.models.eagle3 import Eagle3DraftModel
        from speculators.train.optimizers import build_optimizers

        if drafter.embed_proj is not None or drafter.fc is None or drafter.shape.attention_bias:
            raise ValueError("speculators' drafter has the target's width, always an fc, and no bias on o_proj alone")
        self.device, self.dtype, self.rows = torch.device(device), dtype, rows
        self.shape = drafter.shape
        self.model = Eagle3DraftModel(_config(drafter, attention, config or {}))
        self._load(drafter, target)
        self.model.lm_head.weight.requires_grad_(train_head)
        self.model.to(self.device)
        kernels = kernels or ("eager" if self.device.type == "cpu" else "fused")
        self.call, _ = Eagle3DraftModel.get_trainer_kwargs(
            ttt_steps=steps, ttt_step_loss_decay=decay, loss_fn=loss, loss_implementation=kernels
        )
        self.optimizers = build_optimizers(self.model, SimpleNamespace(optimizer="adamw", lr=lr, weight_decay=0.01))

    def _load(self, drafter: Drafter, target: Target) -> None:
        """Ours by its names, and the target's tables as `load_verifier_weights` would fill them."""
        shape = self.shape
        tables = {
            "embed_tokens.weight": target.embedding,
            "verifier_lm_head.weight": target.head[target.draft_ids],
            "verifier_norm.weight": target.norm,
        }
        if shape.draft_vocab_size != shape.vocab_size:
            tables |= {"t2d": t2d(target.draft_ids, shape.vocab_size), "d2t": d2t(target.draft_ids)}
        ours = {_their_name(name): value for name, value in drafter.state_dict().items()}
        self.model.load_state_dict(ours | tables)

    def groups(self, documents: Sequence[Document], tokens: int) -> list[list[Document]]:
        """As its sampler packs them, in its own shuffled order; every document that fits is used once."""
        from speculators.train.distributed_batch_sampler import MultipackDistributedBatchSamplerV2

        sampler = MultipackDistributedBatchSamplerV2(tokens, [len(d) for d in documents], num_replicas=1, rank=0)
        return [[documents[i] for i in group] for group in sampler]

    def batch(self, documents: Sequence[Document]) -> dict[str, Any]:
        """What its collator makes, on the device."""
        from speculators.models.eagle3 import shift_batch
        from speculators.train.data import CollateFn

        rows = self.rows or sum(len(d) - 1 for d in documents)
        width, layers = self.shape.target_hidden_size, self.shape.num_boundaries
        collate = CollateFn(rows, width, layers, dtype=self.dtype, preprocess=shift_batch)
        items = [
            {
                "hidden_states": d.states,
                "input_ids": d.input_ids,
                "verifier_last_hidden_states": d.before_norm,
                "loss_mask": d.loss_mask.long(),
                "lengths": torch.tensor([len(d)]),
                "position_ids": torch.arange(len(d)),
            }
            for d in documents
        ]
        return {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in collate(items).items()}

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Its loss with the gradient, and its metrics."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            _tokens, loss, metrics = self.model(**batch, **self.call)
        return loss, metrics

    def step(self, batch: dict[str, Any], mark: Callable[[str], None] = unmarked) -> None:
        """One optimiser step."""
        loss, _metrics = self.forward(batch)
        mark("forward")
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        mark("backward")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        mark("optimiser")

    def gradients(self) -> dict[str, Tensor]:
        """By our names."""
        return {_our_name(name): p.grad for name, p in self.model.named_parameters() if p.grad is not None}


def _config(drafter: Drafter, attention: str, more: dict[str, Any]) -> Any:
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    shape = drafter.shape
    layer = llama_config(shape)
    layer._attn_implementation = attention
    given: dict[str, Any] = {
        "norm_before_residual": False,  # its command line's default is true, which SGLang does not serve
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
    }
    return Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=shape.draft_vocab_size,
        eagle_aux_hidden_state_layer_ids=list(range(shape.num_boundaries)),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
        **(given | more),
    )


def _their_name(ours: str) -> str:
    return ours.replace("midlayer.", "layers.0.", 1)


def _our_name(theirs: str) -> str:
    return theirs.replace("layers.0.", "midlayer.", 1)
