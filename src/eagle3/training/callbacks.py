"""What is told while training runs: figures every few steps, and the held-out split's after each epoch."""

import time
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from eagle3.data.loader import PackedLoader, TrainBatch
from eagle3.drafter.flops import training_flops
from eagle3.metrics import Reporter
from eagle3.training.logger import ReporterLogger
from eagle3.training.module import DrafterModule
from eagle3.training.optim import lr_factor
from eagle3.training.peak import peak_of


class Metrics(Callback):
    """Rows through the logger, progress through the reporter; also looks whether the loss is still a number."""

    def __init__(self, logger: ReporterLogger, loader: PackedLoader, log_every: int) -> None:
        """`log_every`: in optimiser steps."""
        self.logger, self.loader, self.log_every = logger, loader, log_every
        self.reporter: Reporter = logger.reporter
        self.tokens = 0
        """Trained on so far, by all ranks, before a resume too."""
        self.seconds = 0.0
        """Spent in training steps so far; validation is not in it."""
        self.last: dict[str, float] = {}
        """The figures last reported."""
        self.best: dict[str, float] = {}
        """The validation with the highest accept length."""
        self._since: float | None = None
        self._reported_step = 0
        self._flops = 0
        """Of this rank, since the last report."""
        self._peak: float | None = None
        """FLOPs/s that a device could do."""
        self._marks = (0, 0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        return {"tokens": self.tokens, "seconds": self.seconds, "last": self.last, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tokens, self.seconds = state_dict["tokens"], state_dict["seconds"]
        self.last, self.best = state_dict["last"], state_dict["best"]

    def _settle(self) -> None:
        """Counts the time up to now."""
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now

    def _mark(self) -> None:
        self._settle()
        self._marks = (self.tokens, self.seconds, self.loader.waited_s)
        self._flops = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._peak = peak_of(pl_module.device, str(trainer.precision))
        if pl_module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(pl_module.device)  # what went before is not training
        self._since = time.perf_counter()
        self._reported_step = trainer.global_step
        self._mark()
        assert isinstance(pl_module, DrafterModule)
        if trainer.global_step:
            self._say_where(trainer, pl_module.total_steps)
        # The first figures may be minutes away.
        self.reporter.progress(trainer.global_step, pl_module.total_steps, unit="steps")

    def _say_where(self, trainer: pl.Trainer, total: int) -> None:
        """Of a training that continues: once, to whoever watches, and in each rank's log."""
        text = f"goes on from step {trainer.global_step:,} of {total:,} (epoch {trainer.current_epoch + 1})"
        self.reporter.note(text)
        print(text, flush=True)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: TrainBatch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DrafterModule)
        self.tokens += batch.tokens
        self._flops += training_flops(pl_module.drafter.shape, batch.work)
        step = trainer.global_step
        due = step > self._reported_step and (step % self.log_every == 0 or step == pl_module.total_steps)
        if due or pl_module.device.type == "cpu":
            pl_module.watch.check()
        if due:
            self._report(trainer, pl_module, step)

    def _report(self, trainer: pl.Trainer, module: DrafterModule, step: int) -> None:
        """On every rank, because what each has counted is brought together; rank 0 alone writes it."""
        figures = module.train_totals.take(module.sum_over_ranks)
        self._settle()
        tokens, seconds, _ = self._marks
        elapsed = max(self.seconds - seconds, 1e-9)
        rates = {
            "tokens_per_s": (self.tokens - tokens) / elapsed,
            "response_tokens_per_s": figures.valid[0] / elapsed,
            **self._over_ranks(module, elapsed),
        }
        row = figures.metrics("train") | {
            "train/lr": module.optim_config.lr
            * lr_factor(step - 1, module.total_steps, module.optim_config.warmup_ratio),
            "train/grad_norm": float(module.grad_norm) if module.grad_norm is not None else 0.0,
            "train/tokens": self.tokens,
            "train/epoch": trainer.current_epoch + (trainer.fit_loop.batch_idx + 1) / max(len(self.loader), 1),
            **{f"train/{name}": value for name, value in rates.items()},
        }
        self.last |= row
        self.logger.log_metrics(row, step)
        shown = {"loss": round(figures.loss, 4), "accept_length": round(figures.accept_length, 3)}
        shown |= {"tokens_per_s": round(rates["tokens_per_s"]), "data_wait": round(rates["data_wait"], 3)}
        shown |= {"mfu": round(rates["mfu"], 3)} if "mfu" in rates else {}
        self.reporter.progress(step, module.total_steps, unit="steps", **shown)
        self._reported_step = step
        self._mark()

    def _over_ranks(self, module: DrafterModule, elapsed: float) -> dict[str, float]:
        """What ranks measure each for itself: FLOPs are summed; the rank that waited, or needed, most is told."""
        on_gpu = module.device.type == "cuda"
        peak_bytes = torch.cuda.max_memory_allocated(module.device) if on_gpu else 0
        own = [float(self._flops), self.loader.waited_s - self._marks[2], float(peak_bytes)]
        gathered = module.all_gather(torch.tensor(own, dtype=torch.float64, device=module.device))
        assert isinstance(gathered, Tensor)
        flops, waited, used = zip(*gathered.view(-1, len(own)).tolist(), strict=True)
        found = {"data_wait": max(waited) / elapsed, "tflops_per_s": sum(flops) / elapsed / 1e12}
        if self._peak is not None:
            found["mfu"] = sum(flops) / elapsed / (self._peak * len(flops))
        if on_gpu:
            found["gpu_memory_gib"] = max(used) / 2**30
        return found

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, DrafterModule)
        pl_module.check_finite()
        self._settle()
        self._since = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, DrafterModule)
        self._since = time.perf_counter()
        figures = pl_module.val_figures
        if figures is not None and not trainer.sanity_checking:
            row = figures.metrics("val") | {"val/epoch": float(trainer.current_epoch + 1)}
            self.last |= row
            if not self.best or row["val/accept_length"] > self.best["val/accept_length"]:
                self.best = row
            self.logger.log_metrics(row, trainer.global_step)
            self.reporter.note(
                f"epoch {trainer.current_epoch + 1}: held-out accept length {figures.accept_length:.3f}, "
                f"loss {figures.loss:.3f}"
            )
