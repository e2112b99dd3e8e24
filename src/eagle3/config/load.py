"""From a composed (or saved) configuration to the typed, validated `Config`."""

import dataclasses
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from eagle3.config.rope import rope_scaling_of
from eagle3.config.schema import Config
from eagle3.config.validate import check_missing, validate
from eagle3.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[3]
"""The folder that holds run.py and conf/; relative `paths` are taken from here, so a command works from any folder."""


def option_file(group: str, option: str) -> Path:
    """Of the project's own; a group may name its package (`nccl@nccl.serving`)."""
    return PROJECT / "conf" / group.partition("@")[0] / f"{option}.yaml"


def from_root(path: str) -> str:
    """An absolute path as it is, a relative one under the project's folder."""
    return str(PROJECT / Path(path).expanduser())


def register() -> None:
    """Makes the schema and the `from_root` resolver known to Hydra; call before composing."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("from_root", from_root, replace=True)


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The configuration with every interpolation resolved, as plain containers.

    Raises:
        ConfigError: a value that must be given is missing; the message names the key.
    """
    check_missing(cfg)
    container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def load(container: dict[str, Any] | DictConfig) -> Config:
    """The typed configuration.

    Raises:
        ConfigError: a rule between fields does not hold, or a value is missing.
        omegaconf.errors.OmegaConfBaseException: an unknown key or a wrong type.
    """
    if isinstance(container, DictConfig):
        container = plain(container)  # untyped, so that a key added with `+` is refused like any unknown one
    merged = OmegaConf.merge(OmegaConf.structured(Config), container)
    assert isinstance(merged, DictConfig)
    check_missing(merged)
    config = OmegaConf.to_object(merged)
    assert isinstance(config, Config)
    _require_plain(config)
    config.drafter.rope_scaling = rope_scaling_of(config.drafter.rope_scaling)
    validate(config)
    return config


def _require_plain(holder: Any, within: str = "") -> None:
    """Raises ConfigError for an item of a list that is a mapping or a list: OmegaConf takes those for any type."""
    for field in dataclasses.fields(holder):
        value, key = getattr(holder, field.name), f"{within}{field.name}"
        if dataclasses.is_dataclass(value):
            _require_plain(value, f"{key}.")
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict | list):
                raise ConfigError(f"{key}: {item} is no single value; give a list of those")


def load_file(path: Path) -> Config:
    """`load` of a run's config.yaml."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return load(loaded)
