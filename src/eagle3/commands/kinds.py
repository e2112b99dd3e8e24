"""What a path is: one of the folders that runs leave behind."""

import json
from enum import StrEnum
from pathlib import Path

from eagle3.commands.sweeps import PAGE
from eagle3.data.exchange.marker import EXPORT, IMPORT
from eagle3.errors import ConfigError
from eagle3.pipeline.sweep_table import JOB_RECORD, SWEEP_FILE
from eagle3.tracking.results import read_json


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
    if (path / "config.json").is_file() and _is_drafter(path):  # it has the snapshot of the run that made it
        return Kind.DRAFTER
    if (path / "provenance.json").is_file() or (path / "snapshot" / "replay.yaml").is_file():
        return Kind.RUN
    if (path / SWEEP_FILE).is_file():
        return Kind.SWEEP
    if (path / PAGE).is_file():
        return Kind.COMPARISON
    if "overrides" in read_json(path / JOB_RECORD):  # of a sweep, and failed before it began
        return Kind.RUN
    if (path / "job.json").is_file():
        return Kind.EVALUATION if read_json(path / "job.json").get("drafter") else Kind.TRAINING
    if (path / "config.json").is_file():
        return Kind.TARGET
    if list(path.glob("run-*.wandb")):
        return Kind.WANDB
    raise ConfigError(f"{path}: nothing that eagle3 knows{_hint(path)}")


def _is_drafter(path: Path) -> bool:
    config = read_json(path / "config.json")
    return "eagle" in json.dumps([config.get("architectures"), list(config)]).lower()


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
