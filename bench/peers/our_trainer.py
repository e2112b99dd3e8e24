"""Our own training step, as `eagle3.training` does it, behind the same face as the peers'.

The one place that follows `run_ttt`.
"""

from collections.abc import Sequence

import torch
from bench.peers.data import Document, Target, pack
from torch import Tensor

from eagle3.config.schema import OptimConfig
from eagle3.drafter.batch import Batch, valid_counts
from eagle3.drafter.model import Drafter
from eagle3.drafter.ttt import TttResult, run_ttt, step_weights, target_argmax
from eagle3.training.optim import build_optimizer


def forward(drafter: Drafter, batch: Batch, target: Target, weights: Tensor, kind: str = "ce") -> TttResult:
    """Training-time test of as many steps as `weights` has: the factor of each step's summed loss."""
    return run_ttt(drafter, batch, target.embedding, target.head, target.draft_ids, len(weights), kind, weights=weights)


class OurTrainer:
    """Trains `drafter` itself.

    Args:
        dtype: of autocast; float32 turns autocast off.
    """

    name = "eagle3"

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        steps: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        decay: float = 0.8,
    ) -> None:
        self.device, self.dtype = torch.device(device), dtype
        self.drafter = drafter.to(self.device)
        self.target = Target(**{name: table.to(self.device) for name, table in vars(target).items()})
        self.steps, self.decay = steps, decay
        self.optim = OptimConfig()
        self.optimizer = build_optimizer(self.drafter.parameters(), self.optim)

    def groups(self, documents: Sequence[Document], tokens: int) -> list[list[Document]]:
        """Documents in their order, as many as fit into `tokens`."""
        found: list[list[Document]] = [[]]
        for document in documents:
            if found[-1] and sum(map(len, found[-1])) + len(document) > tokens:
                found.append([])
            found[-1].append(document)
        return found

    def batch(self, documents: Sequence[Document]) -> Batch:
        batch = pack(documents).to(self.device)
        # Known once a dataset: training computes it before the first epoch.
        top = target_argmax(batch.final, self.target.head)
        return Batch(**(vars(batch) | {"target_top": top}))

    def step(self, batch: Batch) -> None:
        """One optimiser step."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            weights = step_weights(self.decay, valid_counts(batch.loss_mask, batch.document, self.steps))
            found = forward(self.drafter, batch, self.target, weights)
        found.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
