"""One training, from a job to a drafter and `summary.json`; continues from the last checkpoint where there is one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from safetensors.torch import save_file

from eagle3.config.origin import read_origin, write_origin
from eagle3.data.datamodule import HiddenStatesData, LoaderSettings
from eagle3.data.targets import fill_target_top, require_drafted
from eagle3.data.token_text import TokenText
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import choose_draft_ids, count_responses, coverage
from eagle3.errors import TrainingError
from eagle3.files.json_file import write_json
from eagle3.files.whole import whole_file
from eagle3.metrics import Reporter
from eagle3.server.patches import dump_versions
from eagle3.training.callbacks import Metrics
from eagle3.training.checkpoints import (
    BEST,
    LAST,
    AtomicCheckpoints,
    BestCheckpoint,
    LastCheckpoint,
    load_checkpoint,
)
from eagle3.training.frozen import Frozen, initial_drafter
from eagle3.training.job import Job
from eagle3.training.logger import ReporterLogger
from eagle3.training.machine import Machine
from eagle3.training.module import DrafterModule
from eagle3.training.samples import SampleDrafts
from eagle3.training.stop import StopSignal
from eagle3.training.strategy import strategy_of

PRECISION = {"bf16": "bf16-mixed", "fp32": "32-true"}


@dataclass(frozen=True)
class Budget:
    """How long a training is."""

    epochs: int
    total_steps: int
    """Optimiser steps."""
    batches: int
    """Micro-batches of a rank in an epoch: all there are, or fewer where max_steps ends the first epoch early."""

    @staticmethod
    def of(batches: int, accumulate: int, epochs: int, max_steps: int | None) -> "Budget":
        per_epoch = -(-batches // accumulate)
        total = min(per_epoch * epochs, max_steps or per_epoch * epochs)
        return Budget(-(-total // per_epoch), total, min(batches, total * accumulate))


def open_data(job: Job, machine: Machine) -> HiddenStatesData:
    trainer = job.config.trainer
    settings = LoaderSettings(
        tokens_per_batch=trainer.tokens_per_batch,
        accumulate=trainer.accumulate,
        epochs=trainer.epochs,
        steps=job.config.loss.ttt_steps,
        seed=job.config.seed,
        num_workers=trainer.num_workers,
        pin=machine.on_gpu,
        rank=machine.rank,
        world=machine.world,
    )
    return HiddenStatesData(job.dataset, job.prompts, job.boundaries, settings)


def draft_vocabulary(job: Job, machine: Machine, data: HiddenStatesData, size: int) -> tuple[torch.Tensor, float]:
    """Draft ids `[D]` by the training split's response tokens, and their share of these; saved for whoever asks."""
    ids, mask = data.train_set.ids_and_mask()
    counts = count_responses(torch.from_numpy(ids), torch.from_numpy(mask), job.target.vocab_size)
    chosen = choose_draft_ids(counts, size)
    if machine.rank == 0:
        with whole_file(job.out / "draft_vocabulary.safetensors") as partial:
            save_file({"draft_ids": chosen, "counts": counts}, partial)
    return chosen, coverage(counts, chosen)


def train(job: Job, machine: Machine, reporter: Reporter, stop: StopSignal) -> None:
    """Raises Eagle3Error; whatever was saved until then is kept, and the next call continues from it."""
    trainer_config = job.config.trainer
    machine.settle(job.config.seed, trainer_config.deterministic)
    data = open_data(job, machine)
    budget = Budget.of(
        len(data.train_loader), trainer_config.accumulate, trainer_config.epochs, trainer_config.max_steps
    )
    data.train_loader.batches = budget.batches
    shape = DrafterShape.build(job.config.drafter, job.target, len(job.boundaries))
    draft_ids, covered = draft_vocabulary(job, machine, data, shape.draft_vocab_size)
    ranks = f" for each of {machine.world} ranks" if machine.world > 1 else ""
    reporter.note(
        f"{len(data.train_set)} sequences of {int(data.train_set.lengths.sum())} tokens in {len(data.train_loader)} "
        f"batches an epoch{ranks}, {_fill(data.packing.fill)}; {len(data.held_out_set)} sequences held out; "
        f"draft vocabulary of {shape.draft_vocab_size} covers {covered:.1%} of the responses"
    )
    frozen = Frozen.load(job.target, draft_ids)
    last = job.out / "checkpoints" / LAST
    if not _finished(last):
        drafter = initial_drafter(shape, frozen, job.config.seed)
        frozen = frozen.to(machine.device)
        both, share = [data.train_set, data.held_out_set], machine.rank / machine.world
        assert frozen.head is not None
        fill_target_top(both, frozen.head, machine.device, reporter, begin=share)
        require_drafted(data.train_set, data.held_out_set, draft_ids, reporter)
        frozen = frozen.without_head()
        module = DrafterModule(drafter, frozen, job.config.loss, job.config.optim, budget.total_steps, job.plain)
        _fit(job, machine, data, budget, module, ReporterLogger(reporter), stop)
    if machine.rank == 0:
        best = load_checkpoint(job.out / "checkpoints" / BEST)["state_dict"]
        drafter = Drafter(shape)  # ranks may have shared out the one that was trained
        drafter.load_state_dict({name.removeprefix("drafter."): weight for name, weight in best.items()})
        # An imported dataset is of no SGLang: capture ids are written as the newest that is known reads them.
        sglang = data.train_set.states.manifest.sglang_version or dump_versions().newest
        export_drafter(drafter, draft_ids, job.boundaries, job.target, job.out / "drafter", sglang)
        write_origin(_origin(job), job.out / "drafter")
        summary = _summary(last) | {
            "train/parameters": sum(p.numel() for p in drafter.parameters()),
            "train/sequences": len(data.train_set),
            "train/held_out_sequences": len(data.held_out_set),
            "train/draft_vocabulary": shape.draft_vocab_size,
            "train/draft_vocabulary_coverage": covered,
            "train/batch_fill": data.packing.fill,
        }
        write_json(job.out / "summary.json", summary)


def _fill(fill: float) -> str:
    if fill <= 1:
        return f"{fill:.0%} full"
    return f"{fill:,.1f} times as large as trainer.tokens_per_batch, because no sequence is cut"


def _origin(job: Job) -> dict[str, str]:
    return read_origin(job.made_by) if job.made_by else {}


def _fit(
    job: Job,
    machine: Machine,
    data: HiddenStatesData,
    budget: Budget,
    module: DrafterModule,
    logger: ReporterLogger,
    stop: StopSignal,
) -> None:
    cfg, folder = job.config.trainer, job.out / "checkpoints"
    last = folder / LAST
    text = TokenText.of(job.target, job.config.target.trust_remote_code) if machine.rank == 0 else None
    trainer = pl.Trainer(
        accelerator="gpu" if machine.on_gpu else "cpu",
        devices=[machine.device.index] if machine.on_gpu and machine.world == 1 else machine.local_world,
        num_nodes=machine.world // machine.local_world,
        strategy=strategy_of(cfg.strategy, machine.world),
        # Named, because Lightning would take SLURM's variables for a job of many ranks.
        plugins=[
            TorchElasticEnvironment() if machine.world > 1 else LightningEnvironment(),
            AtomicCheckpoints(_origin(job)),
        ],
        precision=PRECISION[cfg.precision],  # type: ignore[arg-type]
        max_epochs=budget.epochs,
        accumulate_grad_batches=cfg.accumulate,
        gradient_clip_val=job.config.optim.clip_norm,
        logger=logger,
        callbacks=[
            Metrics(logger, data.train_loader, cfg.log_every),
            SampleDrafts(logger, data.held_out_set, job.config.loss.ttt_steps, cfg.tokens_per_batch, text),
            BestCheckpoint(folder / BEST),
            LastCheckpoint(last, cfg.checkpoint_every, stop),
        ],
        log_every_n_steps=1,
        default_root_dir=job.out,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        trainer.fit(module, datamodule=data, ckpt_path=last if last.exists() else None, weights_only=True)
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"The GPU's memory ran out with trainer.tokens_per_batch={cfg.tokens_per_batch}. Halve it and double "
            f"trainer.accumulate={cfg.accumulate}: the result is the same, of a training that begins anew. ({error})"
        ) from error


def _callback_states(last: Path) -> dict[str, Any]:
    return load_checkpoint(last, mapped=True)["callbacks"] if last.exists() else {}


def _finished(last: Path) -> bool:
    return bool(_callback_states(last).get(LastCheckpoint.__qualname__, {}).get("finished"))


def _summary(last: Path) -> dict[str, Any]:
    """Final figures of training, and those of the validation that chose the drafter."""
    state = _callback_states(last)[Metrics.__qualname__]
    step = load_checkpoint(last, mapped=True)["global_step"]
    return {
        **{name: value for name, value in state["last"].items() if name.startswith("train/")},
        **state["best"],
        "val/final_accept_length": state["last"]["val/accept_length"],
        "train/steps": step,
        "train/tokens": state["tokens"],
        "train/seconds": state["seconds"],
        "train/tokens_per_s": state["tokens"] / max(state["seconds"], 1e-9),
    }
