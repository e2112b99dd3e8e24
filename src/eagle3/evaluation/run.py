"""One evaluation, from a job to `summary.json`."""

import time
from itertools import pairwise

import numpy as np
from torch import Tensor

from eagle3.data.dataset import SequenceDataset, Split
from eagle3.data.loader import SequentialLoader
from eagle3.data.packing import in_order
from eagle3.data.shards import HiddenStates
from eagle3.data.targets import fill_target_top
from eagle3.drafter.batch import Batch
from eagle3.drafter.plan import Plan
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import DataError
from eagle3.evaluation.by_sequence import BySequence
from eagle3.evaluation.open import open_drafter
from eagle3.evaluation.simulate import Contender, Setting, simulate
from eagle3.evaluation.trained_on import (
    Asked,
    TrainedOn,
    before_response,
    key_of,
    not_known,
    trained_on,
    training_figures,
)
from eagle3.files.json_file import write_json
from eagle3.metrics import Reporter
from eagle3.training.acceptance import Figures, Totals
from eagle3.training.frozen import Frozen, initial_drafter
from eagle3.training.job import Job
from eagle3.training.machine import Machine

TRAINED, UNTRAINED = "eval", "eval/untrained"


def evaluate(job: Job, machine: Machine, reporter: Reporter) -> dict[str, float]:
    """Measures the exported drafter and, if asked, the one that training began with. Gives what summary.json has.

    Raises:
        Eagle3Error: the drafter's folder is not one that SGLang would serve as trained, is of other boundaries, or has
            seen all that is held out.
    """
    begin = time.perf_counter()
    machine.settle(job.config.seed)
    loaded = open_drafter(job, job.boundaries)
    states = HiddenStates(job.dataset)
    held_out = Split.of(states, job.prompts).held_out
    dataset = SequenceDataset(states, held_out, job.boundaries)
    training = trained_on(job.config.evaluate.drafter, job.prompts)
    left_out = _trained_on(dataset, training, job, reporter)
    if left_out.any():
        dataset = SequenceDataset(states, held_out[~left_out], job.boundaries)
    frozen = Frozen.load(job.target, loaded.draft_ids).to(machine.device)
    assert frozen.head is not None
    fill_target_top([dataset], frozen.head, machine.device, reporter)

    embedding = None if loaded.embedding is None else loaded.embedding.to(machine.device)
    cfg = job.config
    contenders = {TRAINED: Contender(loaded.drafter.to(machine.device), embedding)}
    if cfg.evaluate.untrained and cfg.evaluate.drafter is None:
        untrained = initial_drafter(DrafterShape.build(cfg.drafter, job.target, len(job.boundaries)), frozen, cfg.seed)
        contenders[UNTRAINED] = Contender(untrained.to(machine.device))
    batches = in_order(dataset.lengths, cfg.trainer.tokens_per_batch)
    loader = SequentialLoader(dataset, batches, cfg.trainer.num_workers, machine.on_gpu)
    setting = Setting(cfg.loss.ttt_steps, cfg.loss.kind, cfg.loss.step_decay, cfg.trainer.precision)
    done, by_sequence = 0, BySequence()

    def on_batch(sequences: int, totals: dict[str, Totals]) -> None:
        nonlocal done
        done += sequences
        length = totals[TRAINED].peek().accept_length
        reporter.progress(done, len(dataset), unit="sequences", accept_length=round(length, 3))

    def on_choices(name: str, batch: Batch, plan: Plan, choices: Tensor) -> None:
        if name == TRAINED:
            by_sequence.add(batch, plan, choices)

    found = simulate(contenders, frozen, loader, setting, on_batch, on_choices)
    counts = by_sequence.counts()
    counts.save(job.out)
    summary = {
        **{name: value for stage, figures in found.items() for name, value in metrics_of(figures, stage).items()},
        **counts.metrics(TRAINED),
        "eval/sequences": len(dataset),
        "eval/tokens": int(dataset.lengths.sum()),
        "eval/positions": found[TRAINED].valid[0],
        "eval/seconds": time.perf_counter() - begin,
    }
    if cfg.evaluate.drafter is not None:
        summary |= training_figures(training.folder is not None, int(left_out.sum()))
    reporter.log(summary, step=len(dataset))
    for stage, figures in found.items():
        reporter.note(f"{stage}: simulated accept length {figures.accept_length:.3f} on {len(dataset)} sequences")
    write_json(job.out / "summary.json", summary)
    return summary


def _trained_on(dataset: SequenceDataset, training: TrainedOn, job: Job, reporter: Reporter) -> np.ndarray:
    """[n] bool: the held-out conversations that a drafter which was given has seen all the same.

    Raises DataError where those are all.
    """
    seen = np.zeros(len(dataset), bool)
    if training.folder is None:
        reporter.note(not_known(training))
    elif training.folder != job.prompts:
        trained = Asked.of(training.folder).trained
        ids, mask = dataset.ids_and_mask()
        for n, (start, end) in enumerate(pairwise(dataset.offsets.tolist())):
            seen[n] = key_of(before_response(ids[start:end], mask[start:end])) in trained
    if seen.all():
        raise DataError(
            f"{job.drafter} was trained on all {len(dataset)} conversations that this run holds out; give it others "
            "(dataset.path), or the split that it was trained with (dataset.seed, dataset.held_out)"
        )
    if seen.any():
        reporter.note(f"{int(seen.sum())} held-out conversations are left out: the drafter was trained on them")
    return seen


def metrics_of(figures: Figures, stage: str) -> dict[str, float]:
    """`Figures.metrics`, and `<stage>/accepts_j`: the chance that exactly j drafted tokens are accepted."""
    return figures.metrics(stage) | {f"{stage}/accepts_{j}": p for j, p in enumerate(figures.histogram())}
