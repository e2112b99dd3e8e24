"""The stages' artifacts: what determines each, and where it is kept. Reads only small files; starts nothing.

What determines an artifact is listed here, one dictionary a stage. Settings that change how fast something is made,
or how often it is saved, are left out on purpose: changing one must not throw a terabyte away.
"""

import dataclasses
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.config import Config
from eagle3.config.load import from_root
from eagle3.config.provenance import file_sha256
from eagle3.config.validate import BENCH, STAGES, boundaries_of
from eagle3.data.limits import context_flag
from eagle3.errors import ConfigError
from eagle3.pipeline.artifacts import Artifact, fingerprint
from eagle3.pipeline.evaluated import Before, evaluate_inputs, given_of
from eagle3.pipeline.imported import imported, is_imported
from eagle3.server.arguments import installed
from eagle3.server.nccl import in_force
from eagle3.target.info import TargetInfo

REVISION = {"prepare": 1, "extract": 1, "train": 1, "bench": 1}
"""Raised when a stage's output changes meaning, so that older artifacts are not reused."""

SCHEDULING_FLAGS = {
    "mem_fraction_static",
    "max_total_tokens",
    "max_running_requests",
    "max_prefill_tokens",
    "chunked_prefill_size",
    "schedule_policy",
    "schedule_conservativeness",
    "num_continuous_decode_steps",
    "disable_custom_all_reduce",
    "watchdog_timeout",
    "log_level",
}
"""Server flags that change how requests are batched or logged, not what the model computes."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
TOKENIZER_PATTERNS = ("*.model", "*.tiktoken", "*.jinja", "tokenization_*.py")


@dataclass(frozen=True)
class Stages:
    """The artifacts of one experiment, in order. `extract` may be a finished superset of what was asked for."""

    target: TargetInfo
    boundaries: list[int]
    capture: list[int]
    prepare: Artifact
    extract: Artifact
    train: Artifact
    evaluate: Artifact

    def in_order(self) -> list[Artifact]:
        return [self.prepare, self.extract, self.train, self.evaluate]


def artifacts_root(cfg: Config) -> Path:
    return Path(from_root(cfg.paths.artifacts))


def dataset_content(cfg: Config) -> str | list[str]:
    """sha256 of the dataset's file or files; of a dataset of a hub, its name and split."""
    path = Path(cfg.dataset.path)
    if path.is_dir():
        return file_sha256(sorted(p for p in path.rglob("*") if p.is_file()))
    if path.exists() and not path.is_file():
        raise ConfigError(f"dataset.path: {path} is neither a file nor a folder")
    return file_sha256([path]) if path.is_file() else [cfg.dataset.path, str(cfg.dataset.split)]


def _tokenizer_sha256(target: TargetInfo, chat_template: str | None) -> str:
    files = [target.path / name for name in TOKENIZER_FILES if (target.path / name).is_file()]
    files += sorted(p for pattern in TOKENIZER_PATTERNS for p in target.path.glob(pattern))
    return file_sha256(files + ([Path(chat_template)] if chat_template else []))


def _prepare_inputs(cfg: Config, target: TargetInfo) -> dict[str, Any]:
    dataset = cfg.dataset
    inputs: dict[str, Any] = {
        "revision": REVISION["prepare"],
        "content": dataset_content(cfg),
        "limit": dataset.limit,
        "max_length": dataset.max_length,
        "on_long": dataset.on_long,
        "held_out": dataset.held_out,
        "seed": dataset.seed,
        "tokenizer": _tokenizer_sha256(target, cfg.target.chat_template),
    }
    if context := context_flag(cfg, 0):  # a limit on the length, like max_length
        inputs["context_length"] = context
    if cfg.prepare.regenerate:
        own = {"own_prompts": cfg.prepare.own_prompts} if cfg.prepare.own_prompts else {}
        inputs["regenerate"] = {"target": target.fingerprint, "max_new_tokens": cfg.prepare.max_new_tokens, **own}
    return inputs


def _extract_inputs(cfg: Config, target: TargetInfo, prepared: str) -> dict[str, Any]:
    flags = {**cfg.server.flags.common, **cfg.server.flags.extraction}
    return {
        "revision": REVISION["extract"],
        "prepare": prepared,
        "target": target.fingerprint,
        "text_prefix": cfg.target.text_prefix,
        "dtype": cfg.dataset.dtype,
        "server": {
            "sglang": installed(cfg.server.python).version,
            "device": cfg.server.device,
            "dtype": cfg.server.dtype,
            "tp": cfg.server.tp,
            "flags": {name: value for name, value in flags.items() if name not in SCHEDULING_FLAGS},
        },
    }


def _train_inputs(cfg: Config, extracted: str, boundaries: list[int]) -> dict[str, Any]:
    trainer = dataclasses.asdict(cfg.trainer)
    for name in ("num_workers", "checkpoint_every", "log_every", "master"):
        del trainer[name]
    # What counts is how many train together, wherever they are; one that is not sharded has the name it had before.
    trainer["devices"] *= trainer.pop("nodes")
    if trainer["strategy"] == "ddp":
        del trainer["strategy"]
    if not trainer["deterministic"] or trainer["accelerator"] == "cpu":  # a CPU is so anyway
        del trainer["deterministic"]
    drafter = dataclasses.asdict(cfg.drafter)
    if drafter["num_layers"] == 1:  # as well
        del drafter["num_layers"]
    if drafter["train_lm_head"]:
        del drafter["train_lm_head"]
    return {
        "revision": REVISION["train"],
        "extract": extracted,
        "boundaries": boundaries,
        "drafter": drafter,
        "loss": dataclasses.asdict(cfg.loss),
        "optim": dataclasses.asdict(cfg.optim),
        "trainer": trainer,
        "seed": cfg.seed,
    }


def _folder_of(boundaries: list[int]) -> str:
    return "b" + ".".join(map(str, boundaries))


def captured(folder: Path) -> list[int]:
    """The boundaries that an extraction folder's name says it has."""
    return [int(part) for part in folder.name[1:].split(".")]


def _extraction(root: Path, inputs: dict[str, Any], capture: list[int]) -> Artifact:
    """The folder for these boundaries; or the smallest finished one that has them all, which serves as well."""
    base = root / "extract" / fingerprint(inputs)
    wanted = Artifact("extract", base / _folder_of(capture), {**inputs, "capture": capture})
    if wanted.done or not base.is_dir():
        return wanted
    finished = [folder for folder in base.iterdir() if folder.name.startswith("b") and (folder / "DONE").is_file()]
    supersets = [folder for folder in finished if set(capture) <= set(captured(folder))]
    if not supersets:
        return wanted
    best = min(supersets, key=lambda folder: (len(captured(folder)), folder.name))
    return Artifact("extract", best, {**inputs, "capture": captured(best)})


def stages_of(cfg: Config, target: TargetInfo) -> Stages:
    """Every artifact of the experiment.

    Raises:
        ConfigError: the layers don't fit the target, or the dataset is not there.
    """
    root = artifacts_root(cfg)
    boundaries, capture = boundaries_of(cfg, target.num_layers)
    if is_imported(cfg):
        prepare, extract = imported(cfg, target, boundaries)
        extract_inputs = prepare.inputs
    else:
        prepare_inputs = _prepare_inputs(cfg, target)
        prepare = Artifact("prepare", root / "prepare" / fingerprint(prepare_inputs), prepare_inputs)
        extract_inputs = _extract_inputs(cfg, target, prepare.folder.name)
        extract = _extraction(root, extract_inputs, capture)
    # Not the folder's name: a superset and the exact choice give the same states, so the same drafter.
    train_inputs = _train_inputs(cfg, fingerprint(extract_inputs), boundaries)
    train = Artifact("train", root / "train" / fingerprint(train_inputs), train_inputs)
    before = Before(
        prepare.folder, fingerprint(prepare.inputs), fingerprint(extract_inputs), train.folder.name, boundaries
    )
    evaluated = evaluate_inputs(cfg, target, before)
    evaluate = Artifact("evaluate", root / "evaluate" / fingerprint(evaluated), evaluated)
    return Stages(target, boundaries, capture, prepare, extract, train, evaluate)


def inputs_of(cfg: Config, stages: Stages) -> dict[str, Any]:
    """What target, dataset, and what else an evaluation was given are, for the provenance."""
    target, inputs = stages.target, stages.prepare.inputs
    evaluates = STAGES.index(cfg.until) >= STAGES.index("evaluate")
    return {
        "evaluated": given_of(stages.evaluate.inputs) if evaluates else {},
        "target": {
            "name": target.name,
            "source": target.source,
            "path": str(target.path),
            "fingerprint": target.fingerprint,
            "text_prefix": target.text_prefix,
        },
        "dataset": {
            "name": cfg.dataset.name,
            "fingerprint": str(inputs.get("content") or inputs.get("imported")),
            "tokenizer": inputs.get("tokenizer"),
        },
    }


def wanted_artifacts(cfg: Config, target: TargetInfo) -> list[Artifact]:
    """The artifacts that a run with this `until` makes or reuses, in order."""
    if cfg.until == BENCH:
        return [bench_artifact(cfg, target)]
    ordered = stages_of(cfg, target).in_order()[: STAGES.index(cfg.until) + 1]
    wanted = [artifact for artifact in ordered if artifact.stage not in left_out(cfg)]
    return [*wanted, bench_artifact(cfg, target)] if cfg.bench.in_run else wanted


def left_out(cfg: Config) -> set[str]:
    """Stages that a drafter which is there already makes needless."""
    if cfg.evaluate.drafter is None:
        return set()
    # Only the simulation reads hidden states that were dumped.
    return {"train"} if cfg.evaluate.kind == "simulated" else {"train", "extract"}


def bench_artifact(cfg: Config, target: TargetInfo) -> Artifact:
    """A measurement of the served target: of these flags and NCCL settings, on this machine, in this round."""
    inputs = {
        "revision": REVISION["bench"],
        "target": target.fingerprint,
        "sglang": installed(cfg.server.python).version,
        "server": {"device": cfg.server.device, "tp": cfg.server.tp, "dtype": cfg.server.dtype, "env": cfg.server.env},
        "flags": {**cfg.server.flags.common, **cfg.server.flags.serving},
        "nccl": in_force(cfg.nccl.serving.env),
        "bench": {name: value for name, value in dataclasses.asdict(cfg.bench).items() if name != "in_run"},
        "machine": socket.gethostname(),
    }
    return Artifact("bench", artifacts_root(cfg) / "bench" / fingerprint(inputs), inputs)
