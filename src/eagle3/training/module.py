"""The drafter as a LightningModule: one training step is one packed micro-batch with all training-time-test steps."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.distributed.tensor import DTensor

from eagle3.config.schema import LossConfig, OptimConfig
from eagle3.data.loader import TrainBatch
from eagle3.drafter.batch import Batch
from eagle3.drafter.model import Drafter
from eagle3.drafter.plan import Plan
from eagle3.drafter.ttt import TttResult, run_ttt, step_weights
from eagle3.training import rng
from eagle3.training.acceptance import Figures, Totals
from eagle3.training.finite import FiniteWatch
from eagle3.training.frozen import Frozen
from eagle3.training.optim import build_optimizer, build_schedule
from eagle3.training.strategy import share_out


class DrafterModule(pl.LightningModule):
    """Its state is the drafter's alone; the target's weights stay outside of it."""

    def __init__(
        self,
        drafter: Drafter,
        frozen: Frozen,
        loss: LossConfig,
        optim: OptimConfig,
        total_steps: int,
        hyper_parameters: dict[str, Any],
    ) -> None:
        """
        Args:
            total_steps: optimiser steps of the whole training, for the schedule.
            hyper_parameters: plain containers, kept in checkpoints; others could not be loaded without unpickling.
        """
        super().__init__()
        self.save_hyperparameters(hyper_parameters)
        self.drafter = drafter
        self.loss_config, self.optim_config, self.total_steps = loss, optim, total_steps
        self.frozen = frozen
        self.train_totals = Totals(loss.ttt_steps, loss.step_decay)
        self.val_totals = Totals(loss.ttt_steps, loss.step_decay)
        self.val_figures: Figures | None = None
        """Of the last validation."""
        self.grad_norm: Tensor | None = None
        """Of the last optimiser step, before clipping."""
        self.watch = FiniteWatch()

    def configure_model(self) -> None:
        share_out(self)

    def on_fit_start(self) -> None:
        self.frozen = self.frozen.to(self.device)

    def _run(self, batch: Batch, plan: Plan | None = None, weights: Tensor | None = None) -> TttResult:
        frozen, loss = self.frozen, self.loss_config
        tables = (frozen.embedding, frozen.draft_head, frozen.draft_ids)
        return run_ttt(self.drafter, batch, *tables, loss.ttt_steps, loss.kind, plan, weights)

    def training_step(self, step: TrainBatch, batch_idx: int) -> Tensor:
        """The micro-batch's share of the loss over all scored positions of the optimiser step, on all ranks."""
        weights = step_weights(self.loss_config.step_decay, step.step_counts)
        result = self._run(step.batch, step.plan, weights)
        self.train_totals.add(result)
        self.watch.loss(self.trainer.global_step, step.batch.sample_ids, result.loss)
        # Lightning divides by the accumulated batches, and DDP averages over ranks: the sum is wanted.
        return result.loss * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def on_validation_epoch_start(self) -> None:
        self.val_totals = Totals(self.loss_config.ttt_steps, self.loss_config.step_decay)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if len(batch.input_ids):  # where another rank has one batch more, there is nothing here
            result = self._run(batch)
            self.val_totals.add(result)
            self.watch.held_out(batch.sample_ids, result.loss)

    def first_choices(self, batch: Batch) -> Tensor:
        """`TttResult.choices` of a held-out batch. Every rank calls it with the same batch, or none does."""
        return self._run(batch).choices

    def on_validation_epoch_end(self) -> None:
        self.val_figures = self.val_totals.take(self.sum_over_ranks)
        self.watch.check_held_out(self.trainer.global_step, self.val_figures.loss)
        # For the choice of the best checkpoint; the metrics callback reports them.
        self.log_dict(self.val_figures.metrics("val"), logger=False)

    def check_finite(self) -> None:
        """Losses, gradients and weights up to now: on every rank, before the weights are measured or saved.

        Raises:
            TrainingError: one of them is not finite.
        """
        self.watch.weights(self.trainer.global_step, self.drafter.parameters())
        self.watch.check()

    def sum_over_ranks(self, sums: Tensor) -> Tensor:
        reduced = self.trainer.strategy.reduce(sums.to(self.device), reduce_op="sum")
        assert isinstance(reduced, Tensor)
        return reduced

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        # Lightning would keep the gradients through the next forward, where memory is shortest.
        optimizer.zero_grad()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        # Lightning's own does not tell the norm.
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.optim_config.clip_norm)
        self.grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.watch.gradient(self.trainer.global_step, self.grad_norm)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = build_optimizer(self.drafter.parameters(), self.optim_config)
        schedule = build_schedule(optimizer, self.total_steps, self.optim_config.warmup_ratio)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["rng"] = rng.capture()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        rng.restore(checkpoint["rng"])
