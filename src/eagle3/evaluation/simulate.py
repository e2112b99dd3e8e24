"""Simulated acceptance: how far drafts would get on the held-out conversations, without a server.

Teacher-forced on the dumped states, as in training: at each position the drafter drafts as many tokens as there are
training-time-test steps, and a draft counts where it is the target's own greedy choice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3.data.loader import SequentialLoader
from eagle3.drafter.batch import Batch
from eagle3.drafter.model import Drafter
from eagle3.drafter.plan import Plan
from eagle3.drafter.ttt import run_ttt
from eagle3.training.acceptance import Figures, Totals
from eagle3.training.frozen import Frozen


@dataclass(frozen=True)
class Contender:
    """A drafter to be measured."""

    drafter: Drafter
    embedding: Tensor | None = None
    """[V, H], in place of the target's, for a drafter of another width."""


@dataclass(frozen=True)
class Setting:
    steps: int
    kind: str
    """Of the loss that is reported."""
    decay: float
    precision: str
    """bf16 or fp32, as in training."""


@torch.no_grad()
def simulate(
    contenders: Mapping[str, Contender],
    frozen: Frozen,
    loader: SequentialLoader,
    setting: Setting,
    on_batch: Callable[[int, dict[str, Totals]], None] = lambda sequences, totals: None,
    on_choices: Callable[[str, Batch, Plan, Tensor], None] = lambda name, batch, plan, choices: None,
) -> dict[str, Figures]:
    """Figures of each contender over the loader's batches, each of which is read once.

    Args:
        frozen: the target's weights and the draft vocabulary, on the device to compute on.
        on_batch: told the sequences of each batch when it is done.
        on_choices: given each contender's first choices (`TttResult.choices`) of each batch.
    """
    device = frozen.embedding.device
    totals = {name: Totals(setting.steps, setting.decay) for name in contenders}
    for batch in loader:
        moved = batch.to(device)
        plan = Plan.of(moved, setting.steps)
        for name, contender in contenders.items():
            embedding = frozen.embedding if contender.embedding is None else contender.embedding
            with torch.autocast(device.type, torch.bfloat16, enabled=setting.precision == "bf16"):
                result = run_ttt(
                    contender.drafter,
                    moved,
                    embedding,
                    frozen.draft_head,
                    frozen.draft_ids,
                    setting.steps,
                    setting.kind,
                    plan,
                )
            totals[name].add(result)
            on_choices(name, moved, plan, result.choices)
        on_batch(batch.sample_ids.shape[0], totals)
    return {name: sums.take() for name, sums in totals.items()}
