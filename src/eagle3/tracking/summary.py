"""The figures of a run, gathered once for the report page, the terminal's table and W&B's summary."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.config.differences import flat
from eagle3.config.schema import Config
from eagle3.evaluation.followed import Agreement
from eagle3.files.json_file import json_or_empty
from eagle3.tracking.cost import NAMESPACES, cost_figures
from eagle3.tracking.results import TRAINED, UNTRAINED, Acceptance, Stage, acceptance, training_of

_RATES = {"extract": "extract/tokens_per_s", "train": "train/tokens_per_s"}


@dataclass(frozen=True)
class StageRecord:
    """What became of one stage in this run."""

    name: str
    """prepare, extract, train, evaluate or bench."""
    folder: Path
    """Its artifact."""
    seconds: float
    """Wall time spent in this run."""
    reused: bool
    """The artifact was there already."""


@dataclass(frozen=True)
class ReportInputs:
    """All that a report is made from; stages that did not run are missing from `stages`."""

    cfg: Config
    stages: list[StageRecord]
    provenance: dict[str, Any]
    target: dict[str, Any]
    """At least name, source and path, as in TargetInfo."""
    boundaries: list[int]
    drafter: Path | None = None
    """The drafter folder to serve, once there is one."""


@dataclass(frozen=True)
class Timing:
    """One line of the table of stages."""

    name: str
    seconds: float | None
    """What making the artifact took; of a reused one, as far as its own reports tell."""
    reused: bool
    rate: float | None
    """tokens/s, the median of what the stage reported."""
    folder: Path


class Results:
    """Read-only view of a run's stages; what a stage did not leave is None or {}."""

    def __init__(self, inputs: ReportInputs) -> None:
        self.inputs = inputs
        self.stages = {record.name: Stage(record.folder) for record in inputs.stages}

    def _summary(self, stage: str) -> dict[str, Any]:
        return self.stages[stage].summary if stage in self.stages else {}

    @property
    def prepare(self) -> dict[str, Any]:
        return self._summary("prepare")

    @property
    def manifest(self) -> dict[str, Any]:
        return self._summary("extract")

    @property
    def trained(self) -> Acceptance:
        return acceptance(self._summary("evaluate"), TRAINED)

    @property
    def untrained(self) -> Acceptance:
        return acceptance(self._summary("evaluate"), UNTRAINED)

    @property
    def followed(self) -> Agreement | None:
        """What a chain on served answers says of the server."""
        return Agreement.of_summary(self._summary("evaluate"))

    @property
    def given(self) -> Path | None:
        """The drafter that was measured instead of one trained here."""
        path = self.inputs.cfg.evaluate.drafter
        return Path(path) if path is not None and "evaluate" in self.stages else None

    @property
    def boundaries(self) -> list[int]:
        """Of the drafter that was measured, where one was given and the evaluation says so; else of the run."""
        found = self._summary("evaluate")
        said = found.get("eval/boundaries") or found.get("eval/boundaries_read_back")
        return [int(b) for b in said.split(",")] if self.given and isinstance(said, str) else self.inputs.boundaries

    @property
    def training(self) -> str | None:
        """Whether it is known what a given drafter was trained on, in words; None where the evaluation does not say."""
        return training_of(self._summary("evaluate"))

    @property
    def training_known(self) -> bool:
        """False of a given drafter that may have seen what it was asked."""
        return bool(self._summary("evaluate").get("eval/training_known", 1))

    @property
    def too_long(self) -> int:
        """Prompts that were not asked: with an answer they are longer than the target takes."""
        return int(self._summary("evaluate").get("eval/too_long", 0))

    @property
    def drafter_config(self) -> dict[str, Any]:
        """config.json of the drafter."""
        return json_or_empty(self.inputs.drafter / "config.json") if self.inputs.drafter else {}

    def timings(self) -> list[Timing]:
        lines = []
        for record in self.inputs.stages:
            stage = self.stages[record.name]
            rate = None
            if (metric := _RATES.get(record.name)) and (line := stage.series(metric, over="minutes")):
                rate = float(np.median(line.y))
            seconds = stage.seconds if record.reused else record.seconds
            lines.append(Timing(record.name, seconds, record.reused, rate, record.folder))
        return lines

    def flat(self) -> dict[str, int | float | str]:
        """One flat object, for summary.json and to sort W&B's runs by: names as in the history, and of each stage
        `stage_seconds` (wall time) and `reused`."""
        cfg, target = self.inputs.cfg, self.inputs.target
        found: dict[str, Any] = {
            "experiment": cfg.name,
            "target": target.get("name", cfg.target.name),
            "target_source": target.get("source"),
            "boundaries": ",".join(map(str, self.boundaries)),
            "drafter": None if self.given is None else str(self.given),
            "seed": cfg.seed,
            "dataset": cfg.dataset.name,
            "dataset_fingerprint": (self.inputs.provenance.get("dataset") or {}).get("fingerprint"),
        }
        counts = self.prepare.get("counts") or {}
        found |= {f"prepare/{name}": counts.get(name) for name in ("conversations", "kept")}
        found |= {f"prepare/{name}": self.prepare.get(name) for name in ("tokens", "response_tokens")}
        found |= {f"extract/{name}": self.manifest.get(name) for name in ("sequences", "tokens", "bytes")}
        if "quarantined" in self.manifest:
            found["extract/quarantined"] = len(self.manifest["quarantined"])
        for stage in ("train", "evaluate"):
            found |= {name: value for name, value in self._summary(stage).items() if "/" in name}
        for timing in self.timings():
            namespace = NAMESPACES.get(timing.name, timing.name)
            found[f"{namespace}/stage_seconds"] = None if timing.seconds is None else round(timing.seconds, 1)
            found[f"{namespace}/reused"] = timing.reused
            if timing.rate is not None:
                found[f"{namespace}/tokens_per_s"] = round(timing.rate, 1)
        found |= cost_figures(found, dict(flat(dataclasses.asdict(cfg))))
        return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


def serve_command(cfg: Config, target: Mapping[str, Any], drafter: Path) -> str:
    """The shell command that serves target and drafter with SGLang, over several lines.

    Speculation runs on GPUs only, so the flags of a CPU server are left out.
    """
    source = str(target.get("source", ""))
    model = cfg.target.path if source.startswith("hub:") else str(target.get("path") or cfg.target.path)
    steps = max(1, min(3, cfg.loss.ttt_steps))
    words: list[tuple[str, Any]] = [
        ("model_path", model),
        ("speculative_algorithm", "EAGLE3"),
        ("speculative_draft_model_path", str(drafter)),
        ("speculative_num_steps", steps),
        ("speculative_eagle_topk", 1),
        ("speculative_num_draft_tokens", steps + 1),
        ("dtype", cfg.server.dtype),
    ]
    if cfg.server.tp > 1:
        words.append(("tp_size", cfg.server.tp))
    flags = dict(cfg.server.flags.serving)
    if cfg.server.device != "cpu":
        flags = {**cfg.server.flags.common, **flags}
    if cfg.target.trust_remote_code:
        flags["trust_remote_code"] = True
    lines = [f"{name}={shlex.quote(value)}" for name, value in cfg.nccl.serving.env.items()]
    lines.append("python -m sglang.launch_server")
    for name, value in [*words, *flags.items()]:
        if value is None or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        lines.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return " \\\n  ".join(lines)


def replay_command(run_dir: Path) -> str:
    """The command that repeats a run."""
    return f"python run.py --config-dir {shlex.quote(str(run_dir))} snapshot=replay"
