"""What determines an evaluation: all that its figures depend on in the configuration, and nothing else.

A drafter that was trained in the run stands for the dataset, the loss and the trainer that made it. One that was given
stands for its own files alone, so all of these are named beside it.
"""

import dataclasses
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3.config import Config
from eagle3.config.provenance import file_sha256
from eagle3.errors import ConfigError
from eagle3.evaluation.figures import name_of
from eagle3.evaluation.followed import greedy_replies
from eagle3.evaluation.recorded import LOADS
from eagle3.evaluation.sets import HELD_OUT, prompt_file, require_sets, set_name
from eagle3.evaluation.trained_on import drafter_sha256, trained_on
from eagle3.files.json_file import json_or_empty
from eagle3.server.arguments import installed
from eagle3.server.flags import QUIET_FLAGS
from eagle3.server.nccl import in_force
from eagle3.target.info import TargetInfo

REVISION = 6
"""Raised when an evaluation's output changes meaning."""


@dataclasses.dataclass(frozen=True)
class Before:
    """What the stages before an evaluation have made."""

    prompts: Path
    """Folder of prepare."""
    prepare: str
    """Fingerprint, as of the others."""
    extract: str
    """Whatever further boundaries the dataset has."""
    train: str
    boundaries: list[int]


def evaluate_inputs(cfg: Config, target: TargetInfo, before: Before) -> dict[str, Any]:
    """By kind.

    Raises:
        ConfigError: a prompt set is not there, or what is followed is no served evaluation.
        DataError: what is followed is damaged, or has no answers with these drafts.
    """
    inputs: dict[str, Any] = {"revision": REVISION, "train": before.train}
    if cfg.evaluate.drafter is not None:
        inputs["train"] = _given(Path(cfg.evaluate.drafter), cfg, target, before)
    kinds = {"simulated": _simulated, "chain": _chain, "served": _served}
    return inputs | kinds[cfg.evaluate.kind](cfg, before)


def _given(drafter: Path, cfg: Config, target: TargetInfo, before: Before) -> dict[str, Any]:
    seen = trained_on(cfg.evaluate.drafter, before.prompts).folder
    found: dict[str, Any] = {
        "drafter": drafter_sha256(drafter),
        "target": target.fingerprint,
        "text_prefix": cfg.target.text_prefix,
        "trained_on": None if seen is None else seen.name,
    }
    if not _is_ours(drafter):  # whose capture ids mean what this version makes of them
        found["read_by"] = installed(cfg.server.python).version
    return found


def given_of(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Of what was given to an evaluation, as files that may change: what each was known by, by its name."""
    trained = inputs["train"]
    found = {
        "drafter": trained["drafter"] if isinstance(trained, Mapping) else None,
        "prompts": inputs.get("prompts", {}).get("content"),
        "followed answers": inputs["evaluate"].get("follow"),
    }
    return {name: known_by for name, known_by in found.items() if known_by is not None}


def _is_ours(drafter: Path) -> bool:
    return bool(json_or_empty(drafter / "config.json").get("eagle3"))


def _simulated(cfg: Config, before: Before) -> dict[str, Any]:
    if cfg.evaluate.drafter is None:
        return {"evaluate": {"kind": "simulated", "untrained": cfg.evaluate.untrained}}
    return {
        "evaluate": {"kind": "simulated"},  # what it was before training is not known
        "extract": before.extract,
        "boundaries": before.boundaries,
        "loss": dataclasses.asdict(cfg.loss),
        "trainer": _arithmetic(cfg) | {"tokens_per_batch": cfg.trainer.tokens_per_batch},
    }


def _chain(cfg: Config, before: Before) -> dict[str, Any]:
    asked: dict[str, Any] = {"kind": "chain", "steps": cfg.evaluate.drafts[0].steps}
    if cfg.evaluate.drafter is None:
        asked["untrained"] = cfg.evaluate.untrained
    if cfg.evaluate.follow is not None:
        served = Path(cfg.evaluate.follow)
        if not (served / LOADS).is_file():
            raise ConfigError(
                f"evaluate.follow: {served} is no served evaluation: it has no {LOADS}. Give its folder under "
                "artifacts/evaluate; of a run, provenance.json names it"
            )
        greedy_replies(served, name_of(cfg.evaluate.drafts[0]))  # a line that was changed is said now
        asked["follow"] = file_sha256([served / LOADS])
    return {"evaluate": asked, "trainer": _arithmetic(cfg), **_asked(cfg, before)}


def _served(cfg: Config, before: Before) -> dict[str, Any]:
    wanted, server = cfg.evaluate, cfg.server
    asked: dict[str, Any] = {"kind": "served", "drafts": [dataclasses.asdict(draft) for draft in wanted.drafts]}
    asked |= {name: getattr(wanted, name) for name in ("concurrency", "temperatures", "rounds", "beside")}
    asked["untrained"] = cfg.seed if wanted.untrained else None  # of its random weights
    return {
        "evaluate": asked,
        "server": {
            "sglang": installed(server.python).version,
            "device": server.device,
            "tp": server.tp,
            "dtype": server.dtype,
            "env": server.env,
            "flags": {**(QUIET_FLAGS if wanted.beside else {}), **server.flags.common, **server.flags.serving},
            "nccl": in_force(cfg.nccl.serving.env),
            "trust_remote_code": cfg.target.trust_remote_code,
            "machine": socket.gethostname(),
        },
        **_asked(cfg, before),
    }


def _arithmetic(cfg: Config) -> dict[str, Any]:
    """Of a child: the same sums, rounded in the same way."""
    return {"accelerator": cfg.trainer.accelerator, "precision": cfg.trainer.precision}


def _asked(cfg: Config, before: Before) -> dict[str, Any]:
    """What is asked, and how long answers may be."""
    wanted = cfg.evaluate
    require_sets(wanted.prompts)
    files = [prompt_file(name) for name in wanted.prompts if name != HELD_OUT]
    return {
        "prepare": before.prepare,
        "trust_remote_code": cfg.target.trust_remote_code,
        "prompts": {
            "names": [set_name(name) for name in wanted.prompts],
            "content": file_sha256(files) if files else None,
            "limit": wanted.limit,
            "max_new_tokens": wanted.max_new_tokens,
        },
    }
