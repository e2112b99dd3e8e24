"""`eagle3 inspect PATH`: what a folder is, how it was made, its figures, and what can be done with it next."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from eagle3.commands.datasets import begun, dataset, exported, prepared
from eagle3.commands.drafters import serve_command, target_of
from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import Facts, artifacts_of, checkpoint, extract_snapshot, made_by, part
from eagle3.commands.standing import run_state, stage_state
from eagle3.commands.sweeps import comparison, sweep
from eagle3.config.origin import read_origin
from eagle3.drafter.fields import IDS, LAYER, OWN, FaultyDrafterError, layout_of, read_config
from eagle3.errors import EXIT_DONE, ConfigError, DataError, Eagle3Error
from eagle3.evaluation.followed import Agreement
from eagle3.files.json_file import json_or_empty
from eagle3.pipeline.artifacts import DONE
from eagle3.pipeline.sweep_table import JOB_RECORD
from eagle3.tracking.results import FAILURE, TRAINED, UNTRAINED, Stage, acceptance, training_of
from eagle3.units import acceptances, duration, quantity, size

_SIZES = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden size",
    "intermediate_size": "MLP",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key-value heads",
    "vocab_size": "vocabulary",
    "draft_vocab_size": "draft vocabulary",
}
"""config.json's names of what a drafter's shape is told by."""


def run_inspect(path: Path, snapshot: Path | None = None) -> int:
    """Prints the explanation; with `snapshot`, writes what made a checkpoint there instead.

    Raises:
        ConfigError: there is nothing at the path that eagle3 knows, or no checkpoint to take a snapshot from.
        DataError: a file there is not as eagle3 writes it.
    """
    kind = kind_of(path)
    if snapshot is not None:
        if kind is not Kind.CHECKPOINT:
            raise ConfigError(f"{path}: {kind}, which has its snapshot as files; --snapshot is for a checkpoint")
        extract_snapshot(path, snapshot)
        return EXIT_DONE
    describe: dict[Kind, Callable[[Path], Facts]] = {
        Kind.RUN: _run,
        Kind.SWEEP: sweep,
        Kind.COMPARISON: comparison,
        Kind.DATASET: dataset,
        Kind.BEGUN: begun,
        Kind.EXPORTED: exported,
        Kind.PREPARED: prepared,
        Kind.TRAINING: _training,
        Kind.EVALUATION: _evaluation,
        Kind.DRAFTER: _drafter,
        Kind.DAMAGED: _drafter,
        Kind.CHECKPOINT: checkpoint,
        Kind.TARGET: _target,
        Kind.WANDB: _wandb,
    }
    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    console.print(Text.assemble((str(path), "bold"), f": {kind}"))
    try:
        for label, text in describe[kind](path):
            console.print(Text.assemble((f"  {label:<14}", "dim"), text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: a file there is not as eagle3 writes it ({type(error).__name__}: {error}). Restore what was "
            "edited by hand, or remove the folder and make it again."
        ) from error
    return EXIT_DONE


def _run(path: Path) -> Facts:
    made = json_or_empty(path / "provenance.json")
    failure = _failure(path)
    yield "state", run_state(path, failed=failure is not None)
    if failure is not None and not (path / DONE).exists():
        yield "why", failure
    if target := made.get("target"):
        yield "target", f"{target.get('name')}, from {target.get('source')}"
    if boundaries := made.get("boundaries"):
        yield "boundaries", ", ".join(map(str, boundaries))
    summary = json_or_empty(path / "report" / "summary.json")
    yield from _accept_lengths(summary)
    if given := summary.get("drafter"):
        yield "drafter", f"{given}, measured as it was given"
        if (training := training_of(summary)) is not None:
            yield "trained on", training
    for stage, folder in artifacts_of(path).items():
        there = "finished" if (folder / DONE).exists() else "started" if folder.exists() else "not there"
        yield stage, f"{folder} ({there})"
    for name, label in (("drafter", "drafter"), ("report/report.md", "report"), ("logs", "logs")):
        if (path / name).exists():
            yield label, str(path / name)
    if again := made.get("replay"):
        yield "repeats", f"{again.get('of')}: {again.get('outcome') or 'not finished'}"
    yield from made_by(read_origin(path), path)
    for folder in sorted(path.glob("wandb/offline-run-*")):
        yield "sync", f"wandb sync {shlex.quote(str(folder))}"


def _failure(path: Path) -> str | None:
    """Why the run failed, in its own words or, of a sweep's job, in the sweep's."""
    if (path / FAILURE).is_file():
        return " ".join((path / FAILURE).read_text(encoding="utf-8").split())
    found = json_or_empty(path / JOB_RECORD).get("failure")
    return " ".join(str(found).split()) if found else None


def _training(path: Path) -> Facts:
    job, stage = json_or_empty(path / "job.json"), Stage(path)
    config = job.get("config") or {}
    yield "state", stage_state(path)
    yield "target", str(job.get("target"))
    yield "dataset", str(job.get("dataset"))
    yield "boundaries", ", ".join(map(str, job.get("boundaries", [])))
    for group in ("drafter", "loss", "optim", "trainer"):
        chosen = {name: value for name, value in (config.get(group) or {}).items() if value is not None}
        yield group, ", ".join(f"{name}={value}" for name, value in chosen.items())
    if loss := stage.series("train/loss"):
        yield "loss", f"{loss.y[0]:.3f} at step {loss.x[0]:,.0f}, {loss.y[-1]:.3f} at step {loss.x[-1]:,.0f}"
    if length := stage.series("val/accept_length"):
        yield "accept length", f"{length.y[-1]:.2f} at the end, {max(length.y):.2f} at best (held out, simulated)"
    if stage.seconds:
        yield "took", duration(stage.seconds)
    for saved in sorted(path.glob("checkpoints/*.ckpt")):
        yield "checkpoint", f"eagle3 inspect {shlex.quote(str(saved))}"
    if (path / "drafter").is_dir():
        yield "next", f"eagle3 inspect {shlex.quote(str(path / 'drafter'))}"


def _evaluation(path: Path) -> Facts:
    job, kind = json_or_empty(path / "job.json"), part(json_or_empty(path / "inputs.json"), "evaluate").get("kind")
    yield "state", stage_state(path)
    if kind is not None:
        yield "kind", str(kind)
    if not (path / DONE).is_file() and (so_far := Stage(path).so_far):
        yield "so far", so_far
    for name in ("drafter", "dataset"):
        if job.get(name):
            yield name, str(job[name])
    yield from _accept_lengths(json_or_empty(path / "summary.json"))


def _accept_lengths(summary: dict[str, Any]) -> Facts:
    for who in (TRAINED, UNTRAINED):
        found = acceptance(summary, who)
        if found.accept_length is not None:
            shares = ", ".join(acceptances(found.conditional, 0))
            label = "measured" if who == TRAINED and summary.get("drafter") else who
            yield label, f"accept length {found.shown}" + (f" (by draft token: {shares})" if shares else "")
    if (followed := Agreement.of_summary(summary)) is not None:
        yield "followed", str(followed)
    if (best := summary.get("serve/best")) is not None:
        yield "served", f"{summary['serve/speedup']:.2f}x the tokens/s of no speculation, with {best}"


def _drafter(path: Path) -> Facts:
    """Also of a damaged one: what is wrong, and what can be said all the same."""
    try:
        config = read_config(path)
    except FaultyDrafterError as error:
        config = None
        yield from (("fault", fault) for fault in error.faults)
    if config is not None:
        yield from _described(config)
    yield from _weights(path)
    yield from made_by(read_origin(path), path)
    yield "next", f"eagle3 verify {shlex.quote(str(path))}"
    if config is not None:
        model = str(target_of(path)[0] or "TARGET")
        yield "serve", serve_command(layout_of(config), model, str(path.resolve()), 3, " ")


def _described(config: dict[str, Any]) -> Facts:
    layout, own = layout_of(config), config.get(OWN) or {}
    yield "architecture", ", ".join(config.get("architectures") or ["unknown"])
    if target := own.get("target"):
        yield "target", f"{target.get('name')} ({target.get('architecture')}, {target.get('num_layers')} layers)"
    if own.get("boundaries"):
        yield "boundaries", ", ".join(map(str, own["boundaries"]))
    captured = (config if layout == "speculators" else config.get("eagle_config") or {}).get(IDS)
    server = "vLLM" if layout == "speculators" else "SGLang"
    version = f" of SGLang {own['sglang_version']}" if own.get("sglang_version") else ""
    yield "captures", f"layer ids {captured}{version}" if captured else f"{server}'s default layers: none are named"
    figures = config.get(LAYER, {}) | config
    yield "shape", ", ".join(f"{label} {figures[name]:,}" for name, label in _SIZES.items() if figures.get(name))


def _weights(path: Path) -> Facts:
    """Numbers and bytes of a folder's safetensors, from their headers alone."""
    from eagle3.target.weights import weight_files

    if not list(path.glob("*.safetensors")):
        yield "weights", "none: no *.safetensors there"
        return
    try:
        tensors = [tensor for file in weight_files(path) for tensor in file.tensors.values()]
        numbers = sum(int(np.prod(tensor["shape"], dtype=np.int64)) for tensor in tensors)
        stored = sum(tensor["data_offsets"][1] - tensor["data_offsets"][0] for tensor in tensors)
    except Eagle3Error as error:
        yield "weights", str(error)
        return
    yield "weights", f"{quantity(numbers)} parameters, {size(stored)}"


def _target(path: Path) -> Facts:
    from eagle3.target.info import read_info

    info = read_info(path)
    yield "layers", f"{info.num_layers} of hidden size {info.hidden_size:,}"
    yield "vocabulary", f"{info.vocab_size:,} tokens; at most {info.context_length:,} in a sequence"
    yield "next", f"python run.py target=local target.path={shlex.quote(str(path.resolve()))} ..."


def _wandb(path: Path) -> Facts:
    from eagle3.tracking.offline import read_offline

    run = read_offline(path)
    ended = "never finished" if run.exit_code is None else f"finished with exit code {run.exit_code}"
    yield "run", f"{run.name} ({run.run_id}) of project {run.project}, {ended}"
    yield "group", f"{run.group}, job type {run.job_type}"
    yield "tags", ", ".join(run.tags)
    yield "history", f"{len(run.history):,} rows"
    for artifact in run.artifacts:
        yield "artifact", f"{artifact.name} ({artifact.type}), {len(artifact.files)} files"
    yield from _accept_lengths(run.summary)
    yield "next", f"wandb sync {shlex.quote(str(path if path.is_dir() else path.parent))}"
