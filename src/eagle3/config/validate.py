"""The rules between fields. Every message names the key, its value, and what to write instead."""

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eagle3.config.bounds import check_bounds
from eagle3.config.rope import check_rope
from eagle3.config.schema import Config
from eagle3.errors import ConfigError

STAGES = ("prepare", "extract", "train", "evaluate", "report")
LARGEST = 2**63 - 1
"""What 64 bits hold: libraries take no larger number."""
_LONGEST_NAME = 255
"""Bytes of a file's name on the file systems that there are."""
BENCH = "bench"
"""Beside the stages: measures the served target, and needs none of them."""


def check_missing(cfg: DictConfig) -> None:
    """Raises ConfigError naming the values that must be given and are not."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        groups = [key for key in missing if key in ("target", "dataset")]
        remedy = f"choose one, e.g. {groups[0]}=<option> (see conf/{groups[0]}/)" if groups else "give each a value"
        raise ConfigError(f"{', '.join(missing)}: not set; {remedy}")


def default_boundaries(num_layers: int) -> list[int]:
    """[2, n//2, n-3]: what SGLang captures for a drafter that names nothing.

    Raises:
        ConfigError: the model is too shallow for three distinct boundaries.
    """
    boundaries = sorted({2, num_layers // 2, num_layers - 3})
    if len(boundaries) < 3 or boundaries[0] < 1:
        raise ConfigError(
            f"layers.boundaries: null means [2, n//2, n-3], which a model of {num_layers} layers is too shallow for; "
            f"name them, e.g. layers.boundaries=[1,{max(num_layers - 1, 2)}]"
        )
    return boundaries


def boundaries_of(cfg: Config, num_layers: int) -> tuple[list[int], list[int]]:
    """(boundaries to train on, boundaries to capture), both ascending, for a target of `num_layers` layers.

    Raises:
        ConfigError: a boundary that the model does not have, or one trained on and not captured.
    """
    boundaries = cfg.layers.boundaries if cfg.layers.boundaries is not None else default_boundaries(num_layers)
    capture = cfg.layers.capture if cfg.layers.capture is not None else boundaries
    for key, values in (("layers.boundaries", boundaries), ("layers.capture", capture)):
        wrong = outside(values, num_layers)
        if wrong:
            raise ConfigError(
                f"{key}: {wrong} outside 1..{num_layers - 1}; boundary b is the output of layer b-1, "
                f"and this target has layers 0..{num_layers - 1}"
            )
    require_captured(boundaries, capture)
    return boundaries, capture


def require_captured(boundaries: list[int], capture: list[int]) -> None:
    """Raises ConfigError where a boundary is trained on and not captured."""
    lost = sorted(set(boundaries) - set(capture))
    if lost:
        raise ConfigError(
            f"layers.capture: lacks {lost}, which layers.boundaries trains on; add them to layers.capture"
        )


def outside(boundaries: list[int], num_layers: int) -> list[int]:
    """Those that a target of `num_layers` layers does not have."""
    return [b for b in boundaries if not 1 <= b < num_layers]


def _one_of(key: str, value: str, allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError(f"{key}: {value!r} is not one of {', '.join(allowed)}")


def _share(key: str, value: float, *, zero: bool) -> None:
    if not ((value >= 0 if zero else value > 0) and value < 1):
        raise ConfigError(f"{key}: {value} is not a share; give a number {'from 0' if zero else 'above 0'} and below 1")


def _check_finite(key: str, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_finite(f"{key}.{name}" if key else str(name), inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_finite(f"{key}[{number}]", inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}: {value} is not a number to work with; give a finite one")
    elif isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{key}: {value} is too large; give at most {LARGEST}")


def _check_repeats(cfg: Config) -> None:
    for key, values in (
        ("nccl.extra", cfg.nccl.extra),
        ("evaluate.prompts", cfg.evaluate.prompts),
        ("evaluate.drafts", cfg.evaluate.drafts),
        ("evaluate.concurrency", cfg.evaluate.concurrency),
        ("evaluate.temperatures", cfg.evaluate.temperatures),
        ("bench.concurrency", cfg.bench.concurrency),
        ("tracking.tags", cfg.tracking.tags),
        ("sweep.devices", cfg.sweep.devices),
    ):
        for number, value in enumerate(values):
            if value in values[:number]:
                raise ConfigError(f"{key}: {value} is there twice; name it once")


def _check_layers(cfg: Config) -> None:
    boundaries, capture = cfg.layers.boundaries, cfg.layers.capture
    for key, values in (("layers.boundaries", boundaries), ("layers.capture", capture)):
        if values is not None and (not values or values != sorted(set(values))):
            raise ConfigError(
                f"{key}: {values} must be ascending and without repeats, e.g. {sorted(set(values)) or [2, 15, 27]}"
            )
    for key, values in (("layers.boundaries", boundaries), ("layers.capture", capture)):
        if values is not None and values[0] < 1:
            raise ConfigError(
                f"{key}: [{values[0]}] outside 1 to the target's layers less 1; boundary b is the output of layer b-1"
            )
    if cfg.target.shape is not None:
        boundaries_of(cfg, cfg.target.shape.num_layers)


def _check_server(cfg: Config) -> None:
    _one_of("server.device", cfg.server.device, ("cpu", "cuda"))
    if not 0 <= cfg.server.port < 65536:
        raise ConfigError(f"server.port: {cfg.server.port} is not a port; give 1..65535, or 0 for a free one")
    for role in ("extraction", "serving"):
        for name in getattr(cfg.nccl, role).env:
            if not name.startswith("NCCL_"):
                raise ConfigError(f"nccl.{role}.env.{name}: not an NCCL variable; other variables belong in server.env")
    if cfg.prepare.regenerate or (cfg.evaluate.kind == "served" and cfg.until in ("evaluate", "report")):
        for group in ("common", "serving"):
            if getattr(cfg.server.flags, group).get("load_format") == "dummy":
                raise ConfigError(
                    f"server.flags.{group}.load_format: dummy are random weights, whose answers are nobody's; "
                    "remove the key"
                )


def _check_data(cfg: Config) -> None:
    _one_of("dataset.on_long", cfg.dataset.on_long, ("truncate", "skip"))
    _one_of("dataset.dtype", cfg.dataset.dtype, ("bfloat16", "fp8_e4m3"))
    _one_of("server.dtype", cfg.server.dtype, ("bfloat16",))
    _share("dataset.held_out", cfg.dataset.held_out, zero=False)
    _share("dataset.bad_rows", cfg.dataset.bad_rows, zero=True)
    if cfg.prepare.own_prompts and not cfg.prepare.regenerate:
        raise ConfigError("prepare.own_prompts: prompts without answers; set prepare.regenerate=true, or this to 0")
    if not 0 < cfg.dataset.shard_gib <= 64:
        raise ConfigError(f"dataset.shard_gib: {cfg.dataset.shard_gib} is out of range; 1 to 4 is sensible")
    shape = cfg.target.shape
    if shape is not None and cfg.dataset.max_length > shape.context_length:
        raise ConfigError(
            f"dataset.max_length: {cfg.dataset.max_length} is more than the target's context of "
            f"{shape.context_length} tokens; set dataset.max_length={shape.context_length} or less"
        )


def _check_training(cfg: Config) -> None:
    _one_of("loss.kind", cfg.loss.kind, ("ce", "kl", "lk"))
    if not 0 < cfg.loss.step_decay <= 1:
        raise ConfigError(f"loss.step_decay: {cfg.loss.step_decay} is out of range; give a number above 0, at most 1")
    if len(cfg.optim.betas) != 2 or not all(0 <= beta < 1 for beta in cfg.optim.betas):
        raise ConfigError(f"optim.betas: {cfg.optim.betas} must be two numbers from 0 and below 1, e.g. [0.9, 0.95]")
    _share("optim.warmup_ratio", cfg.optim.warmup_ratio, zero=True)
    _one_of("trainer.accelerator", cfg.trainer.accelerator, ("cpu", "gpu"))
    _one_of("trainer.precision", cfg.trainer.precision, ("bf16", "fp32"))
    _check_ranks(cfg)
    check_rope(cfg.drafter.rope_theta, cfg.drafter.rope_scaling)
    shape = cfg.target.shape
    if shape is not None and cfg.drafter.draft_vocab_size > shape.vocab_size:
        raise ConfigError(
            f"drafter.draft_vocab_size: {cfg.drafter.draft_vocab_size} is more than the target's vocabulary of "
            f"{shape.vocab_size}; give at most that"
        )


def _check_ranks(cfg: Config) -> None:
    trainer = cfg.trainer
    _one_of("trainer.strategy", trainer.strategy, ("ddp", "sharded"))
    if trainer.strategy == "sharded" and trainer.devices * trainer.nodes == 1:
        raise ConfigError("trainer.strategy: sharded over one device; give trainer.devices=2 or more, or ddp")
    if trainer.nodes > 1:
        host, _, port = (trainer.master or "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"trainer.master: {trainer.master} with trainer.nodes={trainer.nodes}; "
                "give HOST:PORT, an address of node 0 that the others reach, e.g. 10.0.0.1:29500"
            )
    elif trainer.master is not None:
        raise ConfigError(f"trainer.master: {trainer.master} is for trainer.nodes above 1; leave it out")


def _check_bench(cfg: Config) -> None:
    if not cfg.bench.concurrency:
        raise ConfigError(f"bench.concurrency: {cfg.bench.concurrency}; give numbers of requests, e.g. [1, 4, 16]")


def _check_evaluate(cfg: Config) -> None:
    wanted = cfg.evaluate
    _one_of("evaluate.kind", wanted.kind, ("simulated", "chain", "served"))
    for name in ("prompts", "drafts", "concurrency", "temperatures"):
        if not getattr(wanted, name):
            raise ConfigError(f"evaluate.{name}: empty; give at least one, or leave the key out")
    for number, draft in enumerate(wanted.drafts):
        key = f"evaluate.drafts[{number}]"
        if draft.topk == 1 and draft.tokens != draft.steps + 1:
            raise ConfigError(f"{key}.tokens: {draft.tokens}; a chain (topk 1) of {draft.steps} has {draft.steps + 1}")
        most = 1 + draft.topk + (draft.steps - 1) * draft.topk**2
        if not 2 <= draft.tokens <= most:
            raise ConfigError(f"{key}.tokens: {draft.tokens}; steps={draft.steps}, topk={draft.topk} draft 2 to {most}")
    shape = cfg.target.shape
    if shape is not None and wanted.kind != "simulated" and wanted.max_new_tokens >= shape.context_length:
        raise ConfigError(
            f"evaluate.max_new_tokens: {wanted.max_new_tokens} leaves no room for a prompt in the target's context of "
            f"{shape.context_length} tokens; give less"
        )
    if wanted.follow is not None and (wanted.kind != "chain" or wanted.drafts[0].topk != 1):
        raise ConfigError(
            "evaluate.follow: served answers are followed by evaluate=chain alone, with a topk of 1 in the first of "
            "evaluate.drafts"
        )
    if wanted.drafter is not None and cfg.until == "train":
        raise ConfigError(
            "until: train, with evaluate.drafter, which is measured in the place of one that is trained; leave one away"
        )
    if wanted.kind == "served" and cfg.server.device == "cpu":
        raise ConfigError(
            "evaluate.kind: served, with server.device=cpu; SGLang speculates on GPUs only. "
            "Choose evaluate=chain, which measures the same acceptance without a server"
        )
    if wanted.kind == "served" and wanted.beside and "max_total_tokens" not in _serving_flags(cfg):
        raise ConfigError(
            "evaluate.beside: true, without server.flags.serving.max_total_tokens: each server's cache would take what "
            "memory is free while the others start. Give the tokens of each, e.g. 262144 with a mem_fraction_static of "
            "0.9, or evaluate.beside=false, which has one server up at a time"
        )


def _serving_flags(cfg: Config) -> set[str]:
    return {*cfg.server.flags.common, *cfg.server.flags.serving}


def check_name(name: str) -> None:
    """Raises ConfigError for a name that is no folder's."""
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"name: {name!r} names a folder under runs/; use letters, digits, - and _")
    if (length := len(os.fsencode(name))) > _LONGEST_NAME:
        raise ConfigError(f"name: {length} bytes are too many for a folder's name; at most {_LONGEST_NAME}")


def validate(cfg: Config) -> None:
    """Checks every rule that needs no model at hand.

    Raises:
        ConfigError: names the key and the remedy.
    """
    _one_of("mode", cfg.mode, ("run", "plan"))
    _one_of("until", cfg.until, (*STAGES, BENCH))
    check_bounds(cfg)
    _check_evaluate(cfg)
    _one_of("tracking.mode", cfg.tracking.mode, ("offline", "online", "disabled"))
    _check_finite("", dataclasses.asdict(cfg))
    _check_repeats(cfg)
    if not cfg.target.path.strip():
        raise ConfigError("target.path: empty; give a local folder or a hub id (owner/name)")
    if not cfg.dataset.path.strip():
        raise ConfigError("dataset.path: empty; give a file, a folder, or a hub id (owner/name)")
    for key, path in (("artifacts", cfg.paths.artifacts), ("runs", cfg.paths.runs), ("cache", cfg.paths.cache)):
        if path is not None and not path.strip():
            raise ConfigError(f"paths.{key}: empty; give a folder, or leave the key out for the default")
    check_name(cfg.name)
    _check_layers(cfg)
    _check_server(cfg)
    _check_data(cfg)
    _check_training(cfg)
    _check_bench(cfg)
