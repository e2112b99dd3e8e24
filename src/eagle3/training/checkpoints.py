"""Checkpoints: `best.ckpt` (weights, by held-out accept length) and `last.ckpt` (everything that continuing needs)."""

import contextlib
import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as distributed
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from eagle3.config.origin import KEY
from eagle3.data.loader import PackedLoader
from eagle3.errors import Eagle3Error, Interrupted, TrainingError
from eagle3.files.disk import disk_error, system_error
from eagle3.training.finite import NONE_SAVED
from eagle3.training.module import DrafterModule
from eagle3.training.stop import StopSignal

BEST, LAST = "best.ckpt", "last.ckpt"
MONITOR = "val/accept_length"


class AtomicCheckpoints(TorchCheckpointIO):
    """Written beside, synced and renamed: at any moment the old one is there, or the new one. Never unpickles."""

    def __init__(self, made_by: dict[str, str] | None = None) -> None:
        """`made_by`: the run's snapshot and provenance, kept in each checkpoint."""
        super().__init__()
        self.made_by = made_by or {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Lightning's own goes through memory and the system's temporary folder, from where a move is a copy.
        beside = path.with_name(path.name + ".new")
        try:
            with beside.open("wb") as file:
                torch.save({**checkpoint, **({KEY: self.made_by} if self.made_by else {})}, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except (OSError, RuntimeError) as error:
            said = system_error(error)
            told = f"{path} could not be written ({error})." if said is None else str(disk_error(said, path))
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)  # after disk_error looked how much is free: it says why
            continues = (path.parent / LAST).is_file()
            then = "The same command continues from the checkpoint before." if continues else NONE_SAVED
            raise TrainingError(f"{told} {then}") from error
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def load_checkpoint(
        self, path: str | Path, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        return load_checkpoint(Path(path))


def load_checkpoint(path: Path, mapped: bool = False) -> dict[str, Any]:
    """A checkpoint in memory; `mapped`, of which only what is looked at is read.

    Raises:
        TrainingError: it is missing, cannot be read, or holds more than data.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise TrainingError(f"{path} is not there. {_anew(path)}") from None
    except Exception as error:
        raise TrainingError(f"{path} can't be read ({error}). {_anew(path)}") from error


def _anew(path: Path) -> str:
    return f"Put it back as it was, or delete {path.parent}: the same command then trains from the first step."


class BestCheckpoint(ModelCheckpoint):
    """Keeps the weights of the epoch with the highest held-out accept length."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            dirpath=path.parent,
            filename=path.stem,
            monitor=MONITOR,
            mode="max",
            save_top_k=1,
            save_weights_only=True,
            auto_insert_metric_name=False,
            enable_version_counter=False,
        )
        self.path = path

    def state_dict(self) -> dict[str, Any]:
        # Without Lightning's absolute paths, for which a folder that was moved would lose its best.
        return {"score": self.best_model_score}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        score = state_dict["score"]
        if score is not None:
            self.best_model_path = self.kth_best_model_path = str(self.path)
            self.best_model_score = self.kth_value = score
            self.best_k_models = {str(self.path): score}


class LastCheckpoint(Checkpoint):
    """Saves every so many steps, at each epoch's end, and before stopping on a signal or an error.

    Only between optimiser steps, where nothing is half done: what continues from there does the same as if nothing had
    happened. It comes after `BestCheckpoint` among the callbacks, whose state it saves.
    """

    def __init__(self, path: Path, every: int, stop: StopSignal) -> None:
        """`every`: optimiser steps."""
        self.path, self.every, self.stop = path, every, stop
        self.finished = False
        self._hosts: distributed.ProcessGroup | None = None
        """The ranks' processors, which ask each other without waiting for their GPUs."""

    def state_dict(self) -> dict[str, Any]:
        return {"finished": self.finished}

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, DrafterModule)
        pl_module.watch.saved = trainer.global_step or None  # where it continues
        if trainer.world_size > 1:
            hosts = distributed.new_group(backend="gloo")
            assert isinstance(hosts, distributed.ProcessGroup)
            self._hosts = hosts
        # Lightning has just put its own handler there, which would raise between micro-batches.
        self.stop.install()
        self.stop.graceful = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.stop.graceful = False

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, DrafterModule)
        module.check_finite()
        trainer.save_checkpoint(self.path)
        module.watch.saved = trainer.global_step

    def _stop_requested(self) -> bool:
        """On any rank; all of them have to ask."""
        if self._hosts is None:
            return self.stop.requested
        requested = torch.tensor(int(self.stop.requested))
        distributed.all_reduce(requested, distributed.ReduceOp.MAX, group=self._hosts)
        return bool(requested)

    def _interrupt(self) -> None:
        raise Interrupted(f"Interrupted; {self.path} is saved, and the same command continues from it.")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DrafterModule)
        last = batch_idx + 1 == trainer.num_training_batches
        if last or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return  # after the epoch's last batch comes the validation, and then the epoch's end
        if trainer.global_step >= pl_module.total_steps:
            trainer.should_stop = True  # ends the epoch here, with its validation
            return
        stop = self._stop_requested()
        if stop or trainer.global_step % self.every == 0:
            self._save(trainer, pl_module)
        if stop:
            self._interrupt()

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if trainer.sanity_checking or trainer.should_stop or not self._stop_requested():
            return
        # Lightning would continue in the middle, without the figures of the batches before: go back to the first.
        progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress
        for count in (progress.current, progress.total):
            before = count.ready - (batch_idx + 1)
            for name, value in (("ready", 1), ("started", 1), ("processed", 0), ("completed", 0)):
                setattr(count, name, before + value)
        self._save(trainer, pl_module)
        self._interrupt()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, DrafterModule)
        self.finished = trainer.global_step >= pl_module.total_steps
        self._save(trainer, pl_module)
        if self._stop_requested():
            self._interrupt()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.stop.graceful = False
        if isinstance(exception, TrainingError | Interrupted) or trainer.world_size > 1:
            return  # saved already, not to be saved, or the other ranks are elsewhere
        with contextlib.suppress(Eagle3Error):  # the exception at hand is the one to tell
            if _between_steps(trainer):
                self._save(trainer, pl_module)


def _between_steps(trainer: pl.Trainer) -> bool:
    """Whether the weights are those after the batches that count as done; if so, the data continues after them."""
    loop = trainer.fit_loop.epoch_loop
    done, accumulate = loop.batch_progress.current.completed, trainer.accumulate_grad_batches
    steps = trainer.fit_loop.epoch_progress.current.completed * -(-int(trainer.num_training_batches) // accumulate)
    if trainer.validating or done % accumulate or trainer.global_step != steps + done // accumulate:
        return False
    loader = trainer.train_dataloader
    assert isinstance(loader, PackedLoader)
    loader.sampler.handed_out = done
    return True
