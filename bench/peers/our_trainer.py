"""Our own training step, as `eagle3.training` does it, behind the same face as the peers'.

The one place that follows `run_ttt`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from bench.peers.data import Document, Target, pack
from bench.peers.measure import unmarked
from torch import Tensor

from eagle3.config.schema import OptimConfig
from eagle3.data.loader import TrainBatch
from eagle3.drafter.batch import Batch
from eagle3.drafter.flops import Work
from eagle3.drafter.model import Drafter
from eagle3.drafter.plan import Plan
from eagle3.drafter.ttt import TttResult, run_ttt, step_weights, target_argmax
from eagle3.training.optim import build_optimizer


def forward(drafter: Drafter, batch: Batch, target: Target, weights: Tensor, kind: str = "ce") -> TttResult:
    """Training-time test of as many steps as `weights` has: the factor of each step's summed loss."""
    batch = replace(batch, target_top=target_argmax(batch.final, target.head))
    head = target.head[target.draft_ids]
    return run_ttt(drafter, batch, target.embedding, head, target.draft_ids, len(weights), kind, weights=weights)


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
        self.target = target
        self.embedding, self.draft_ids = target.embedding.to(self.device), target.draft_ids.to(self.device)
        self.draft_head = target.head[target.draft_ids].to(self.device)
        self._known: dict[tuple[int, ...], TrainBatch] = {}
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

    def batch(self, documents: Sequence[Document]) -> TrainBatch:
        """On the device. The target's choices and the plan are found when documents come for the first time: training
        computes the choices before the first epoch, and plans are made by the loader's threads.
        """
        key = tuple(map(id, documents))
        if key not in self._known:
            batch = pack(documents)
            head = self.target.head.to(self.device)
            top = target_argmax(batch.final.to(self.device), head).cpu()
            batch = replace(batch, target_top=top)
            plan = Plan.of(batch, self.steps)
            work = Work.of(batch.loss_mask, batch.document, batch.position, self.steps)
            self._known[key] = TrainBatch(batch, plan, plan.counts, len(batch.input_ids), work)
        return self._known[key].to(self.device)

    def forward(self, batch: TrainBatch) -> TttResult:
        """Its `loss` has the gradient."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return run_ttt(
                self.drafter,
                batch.batch,
                self.embedding,
                self.draft_head,
                self.draft_ids,
                self.steps,
                plan=batch.plan,
                weights=step_weights(self.decay, batch.step_counts),
            )

    def step(self, batch: TrainBatch, mark: Callable[[str], None] = unmarked) -> None:
        """One optimiser step."""
        found = self.forward(batch)
        mark("forward")
        found.loss.backward()
        mark("backward")
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        mark("optimiser")
