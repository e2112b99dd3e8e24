"""What a path is: one of the folders that runs leave behind."""

import json
import os
from enum import StrEnum
from pathlib import Path

from eagle3.commands.sweeps import PAGE
from eagle3.config.origin import PROVENANCE, SNAPSHOT
from eagle3.data.exchange.marker import EXPORT, IMPORT
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.evaluation.recorded import LOADS
from eagle3.files.json_file import json_or_empty
from eagle3.pipeline.sweep_table import JOB_RECORD, SWEEP_FILE
from eagle3.target.weights import read_header


class Kind(StrEnum):
    RUN = "a run"
    SWEEP = "a sweep"
    COMPARISON = "a comparison of runs"
    DATASET = "a dataset of hidden states"
    BEGUN = "a dataset of hidden states that was only begun"
    EXPORTED = "hidden states exported for another project"
    PREPARED = "prepared prompts"
    TRAINING = "a training"
    EVALUATION = "an evaluation"
    DRAFTER = "an EAGLE-3 drafter"
    DAMAGED = "a damaged EAGLE-3 drafter"
    TARGET = "a model"
    CHECKPOINT = "a training's checkpoint"
    WANDB = "a W&B run"


def kind_of(path: Path) -> Kind:
    """Recognises a path by the files that only its kind has.

    Raises:
        ConfigError: there is nothing at the path, or nothing that eagle3 knows.
    """
    if not path.exists():
        raise ConfigError(f"{path}: there is no such path")
    if path.is_file():
        if path.suffix == ".wandb":
            return Kind.WANDB
        if path.suffix == ".ckpt":
            return Kind.CHECKPOINT
        raise ConfigError(f"{path}: a file; give the folder that holds it")
    if (path / "manifest.json").is_file():
        return Kind.DATASET
    if (path / EXPORT).is_file():
        return Kind.EXPORTED
    if (path / IMPORT).is_file() or (path / "work" / "placement.json").is_file():
        return Kind.BEGUN
    if (path / "prepare.json").is_file() or (path / "prompts.safetensors").is_file():
        return Kind.PREPARED
    if (drafter := _drafter(path)) is not None:  # before a run: it may have the snapshot of the one that made it
        return drafter
    if _has_origin(path):
        return Kind.RUN
    if (path / SWEEP_FILE).is_file():
        return Kind.SWEEP
    if (path / PAGE).is_file():
        return Kind.COMPARISON
    if "overrides" in json_or_empty(path / JOB_RECORD):  # of a sweep, and failed before it began
        return Kind.RUN
    if (path / LOADS).is_file():  # served: by the run itself, without a job
        return Kind.EVALUATION
    if (path / "job.json").is_file():
        return Kind.EVALUATION if json_or_empty(path / "job.json").get("drafter") else Kind.TRAINING
    if (path / "config.json").is_file():
        return Kind.TARGET
    if list(path.glob("run-*.wandb")):
        return Kind.WANDB
    raise ConfigError(f"{path}: nothing that eagle3 knows{_hint(path)}")


def _drafter(path: Path) -> Kind | None:
    """A drafter, whatever has become of it: no other kind has a run's snapshot beside weights or a config.json."""
    config = json_or_empty(path / "config.json")
    if "eagle" in json.dumps([config.get("architectures"), list(config)]).lower():
        return Kind.DRAFTER
    weights = sorted(path.glob("model*.safetensors"))
    described = os.path.lexists(path / "config.json")
    if (_has_origin(path) and (described or weights)) or any(map(_of_a_drafter, weights)):
        return Kind.DAMAGED
    return None


def _has_origin(path: Path) -> bool:
    return (path / PROVENANCE).is_file() or (path / SNAPSHOT).is_file()


def _of_a_drafter(weights: Path) -> bool:
    """By names that no model has that answers by itself."""
    try:
        names = read_header(weights).tensors
    except Eagle3Error:  # whose it is can't be told by it; what is wrong with it says whoever reads it
        return False
    return any(name.removeprefix("model.").startswith(("fc.", "d2t", "midlayer.")) for name in names)


def _hint(path: Path) -> str:
    """Points to what lies below: people give `artifacts/extract/<fingerprint>`, or `runs/<name>`."""
    for marker in ("*/manifest.json", "*/prepare.json", "*/job.json", "*/provenance.json", "*/*/provenance.json"):
        found = sorted(path.glob(marker))
        if found:
            return f"; did you mean {found[-1].parent}?"
    return (
        "; it should be a run (runs/<experiment>/<time>), a stage's folder under artifacts/, or a drafter "
        "(config.json and model.safetensors)"
    )
