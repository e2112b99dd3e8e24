"""Where the inputs of a run are: paths that were given from the current folder, or from the project's."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from eagle3.config import PROJECT, Config
from eagle3.config.validate import BENCH
from eagle3.errors import ConfigError
from eagle3.evaluation.sets import is_named, require_sets

INPUTS = ("dataset.path", "target.path", "target.chat_template", "evaluate.drafter", "evaluate.follow")
PROMPTS = "evaluate.prompts"


def find_inputs(cfg: Config) -> None:
    """Makes the paths of inputs absolute: from the current folder, else the project's. A measurement of the served
    target (`until=bench`) has the target alone.

    Raises:
        ConfigError: a path that is plainly a file's is not there; two prompt sets would have the same name.
    """
    for key in ("target.path",) if cfg.until == BENCH else INPUTS:
        group, field = key.split(".")
        holder = getattr(cfg, group)
        given = getattr(holder, field)
        if given is None:
            continue
        if not given:
            raise ConfigError(f"{key}: empty; give a path, or null for none")
        if found := found_path(given):
            setattr(holder, field, str(found))
            continue
        plainly = given.startswith(("/", ".", "~")) or given.endswith((".jsonl", ".json"))
        if field in ("chat_template", "drafter", "follow") or plainly:
            looked = " and ".join(dict.fromkeys(map(str, (Path.cwd(), PROJECT))))
            raise ConfigError(f"{key}: {given} is not there (looked in {looked}); give a path that exists")
    if cfg.until == BENCH:
        return
    cfg.evaluate.prompts = [name if is_named(name) else str(found_path(name) or name) for name in cfg.evaluate.prompts]
    if cfg.evaluate.kind != "simulated":
        require_sets(cfg.evaluate.prompts)


def found_path(given: str) -> Path | None:
    """Absolute; None where neither folder has it."""
    for base in (Path.cwd(), PROJECT):
        found = base / Path(given).expanduser()
        if found.exists():
            return found.resolve()
    return None


def keep_inputs(cfg: DictConfig) -> None:
    """Makes absolute, in the configuration that a run keeps, what was given from a current folder that is not the
    project's: the command that repeats the run must find it from anywhere. Paths in the project stay as they are, so
    that it may be moved."""
    for key in INPUTS:
        given = OmegaConf.select(cfg, key)
        if isinstance(given, str):
            OmegaConf.update(cfg, key, _kept(given))
    if (names := OmegaConf.select(cfg, PROMPTS)) is not None:
        kept = [name if not isinstance(name, str) or is_named(name) else _kept(name) for name in names]
        OmegaConf.update(cfg, PROMPTS, kept)


def _kept(given: str) -> str:
    found, own = found_path(given), PROJECT / Path(given).expanduser()
    return given if found is None or found == own.resolve() else str(found)
