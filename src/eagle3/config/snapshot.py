"""A run's own configuration: `run.py --config-dir RUN snapshot=replay` composes it again, byte for byte."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eagle3.config.load import plain
from eagle3.errors import ConfigError

_NOT_REPLAYED = ("snapshot", "hydra/")


def resolved_yaml(cfg: DictConfig) -> str:
    """The resolved configuration as YAML: what config.yaml holds and what a replay must reproduce."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(cfg)))


def replay_yaml(cfg: DictConfig, choices: dict[str, Any]) -> str:
    """The group option that replays a run: the same choices (for tags and types), then every value.

    The choices come first because Hydra composes them anyway; the body then fixes each value, whatever the
    option files say by then.
    """
    kept = {
        group: option
        for group, option in sorted(choices.items())
        if option is not None and not group.startswith(_NOT_REPLAYED)
    }
    lines = [
        "# @package _global_",
        "# Repeats this run: python run.py --config-dir <this run's folder> snapshot=replay",
        "defaults:",
    ]
    lines += [f"  - override /{group}: {option}" for group, option in kept.items()] or ["  []"]
    return "\n".join([*lines, "  - _self_" if kept else "", "", resolved_yaml(cfg)])


def write_snapshot(run_dir: Path, cfg: DictConfig, choices: dict[str, Any], overrides: list[str]) -> None:
    """Writes config.yaml and snapshot/replay.yaml into the run folder.

    Raises:
        ConfigError: an override deletes a key (`~key`): a replay could not know of it.
    """
    deletions = [item for item in overrides if item.startswith("~")]
    if deletions:
        raise ConfigError(f"{deletions[0]}: a deletion can't be replayed from a snapshot; set the key to null instead")
    (run_dir / "config.yaml").write_text(resolved_yaml(cfg), encoding="utf-8")
    folder = run_dir / "snapshot"
    folder.mkdir(exist_ok=True)
    (folder / "replay.yaml").write_text(replay_yaml(cfg, choices), encoding="utf-8")
