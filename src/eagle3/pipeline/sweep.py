"""Multirun: one folder for a sweep, found again by the same command; its jobs run in processes of their own.

Hydra's basic sweeper makes the jobs' configurations, and whatever launcher is configured calls `run_job` with each.
What a sweep needs beyond that is here: a name that the same command gives again, a lock, one extraction for all choices
of boundaries, and the table at the end.
"""

import fcntl
import hashlib
import json
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from yaml import YAMLError

from eagle3.comparison import Comparison, NothingToCompareError, compare, headline
from eagle3.config.schema import TargetConfig
from eagle3.config.validate import check_name, default_boundaries, outside
from eagle3.errors import EXIT_BAD_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, Eagle3Error
from eagle3.files.disk import is_full
from eagle3.files.json_file import write_json
from eagle3.pipeline.sweep_job import NOT_NAMED, STOP, settle, stop_elsewhere, wait_elsewhere
from eagle3.pipeline.sweep_plan import print_sweep_plan
from eagle3.pipeline.sweep_table import DAMAGED, SWEEP_FILE, read_records, write_tables

LOCK = "LOCK"
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
_AT_ONCE = ("submitit_launcher.LocalLauncher", "joblib_launcher.JoblibLauncher")
"""Launchers that start all jobs at once on this machine."""


@dataclass
class _Sweep:
    folder: Path
    lock: TextIO | None
    """Held until this process ends; None for a plan, which writes nothing."""


_current: _Sweep | None = None


class SweepCallback(Callback):
    """Named in conf/config.yaml; Hydra calls it once the sweep is composed, before its first job."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra makes a warning of an error here and goes on, but not of SystemExit.
        global _current
        folder = Path(str(config.hydra.sweep.dir))
        if config.mode == "run" and not config.sweep.devices and config.hydra.launcher._target_.endswith(_AT_ONCE):
            told = "this launcher starts all jobs at once: say which GPUs they are to share out"
            print(f"error: sweep.devices: {told}, e.g. 'sweep.devices=[0,1]'", file=sys.stderr)
            raise SystemExit(EXIT_BAD_CONFIG)
        try:
            check_name(str(config.name))
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(EXIT_BAD_CONFIG) from None
        jobs = _jobs(config)
        further = []
        if not any(item.startswith("hydra.sweep.dir=") for item in config.hydra.overrides.hydra):
            folder = folder.with_name(f"{folder.name}_{_digest(config)}")
            further.append(f"hydra.sweep.dir={json.dumps(str(folder))}")
        if (union := _union(config, jobs)) is not None:
            further.append(f"layers.capture={json.dumps(union)}")
            jobs = [[further[-1], *job] for job in jobs or []]
            print(f"layers.capture={union}: one extraction for all choices of boundaries", file=sys.stderr)
        with read_write(config), open_dict(config):
            config.hydra.sweep.dir = str(folder)
            config.hydra.overrides.hydra.extend(further)  # what every job is composed with
            if config.mode == "plan":  # is made in this process, whatever is to run the jobs
                config.hydra.launcher = {"_target_": BASIC_LAUNCHER}
            if config.sweep.fail_fast:
                config.hydra.sweeper.max_batch_size = 1  # Hydra stops after a batch with a failure
        lock = None
        if config.mode == "run":
            lock = _begun(folder, {"command": shlex.join(sys.argv), "jobs": jobs})
        _current = _Sweep(folder, lock)


def sweeping() -> bool:
    """Whether this process runs a sweep, whose table is due however it ends."""
    return _current is not None


def end_sweep(code: int) -> int:
    """The table of all jobs, when a sweep was run; gives the process's exit code.

    Args:
        code: what the exit code would be without it.
    """
    if _current is None:
        return code
    if _current.lock is None:
        with suppress(OSError):  # a folder that can't be made
            (_current.folder / "multirun.yaml").unlink(missing_ok=True)  # Hydra's; a plan leaves nothing
        for folder in (_current.folder, _current.folder.parent):
            with suppress(OSError):  # there was something before
                folder.rmdir()
        return print_sweep_plan() or code
    (stop_elsewhere if code == EXIT_INTERRUPTED else wait_elsewhere)(_current.folder)
    records = read_records(_current.folder)
    settle(_current.folder, records, interrupted=code == EXIT_INTERRUPTED)
    found = _compared(_current.folder)
    write_tables(_current.folder, records, [] if found is None else found.rankings)
    if code == EXIT_INTERRUPTED:
        return code
    if found is not None:
        _publish(_current.folder, found)
    return EXIT_FAILED if any(record.status in ("failed", DAMAGED) for record in records) else code


def _compared(folder: Path) -> Comparison | None:
    """Of the jobs that are done; None without one, and, said, where it fails: it stops nothing."""
    try:
        return compare([folder])
    except NothingToCompareError:
        return None
    except (Eagle3Error, OSError) as error:
        print(f"warning: the jobs are not compared: {error}", file=sys.stderr)
        return None


def _publish(folder: Path, found: Comparison) -> None:
    """Beside the tables: the comparison, with W&B's run of the whole sweep. What it can't write stops nothing."""
    from eagle3.comparison.publish import FOLDER, publish

    try:
        publish(folder, found)
    except (Eagle3Error, OSError) as error:
        print(f"warning: no comparison was written: {error}", file=sys.stderr)
        return
    print("\n".join(["", *headline(found), f"comparison: {folder / FOLDER / 'comparison.html'}"]))


def _jobs(config: DictConfig) -> list[list[str]] | None:
    """Every job's overrides, in Hydra's order; None where another sweeper decides them as it goes."""
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        return None
    given = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*given, *config.hydra.overrides.task])
    return [job for batch in BasicSweeper.split_arguments(overrides, None) for job in batch]


def _union(config: DictConfig, jobs: list[list[str]] | None) -> list[int] | None:
    """All boundaries of a sweep that varies them and does not say what to capture; None of any other.

    Args:
        jobs: overrides of each; what they make of `layers` is composed, so that a choice of the group counts too.
    """
    by_choice = {tuple(item for item in job if item.startswith("layers")): job for job in jobs or []}
    if len(by_choice) < 2:
        return None
    found: set[tuple[int, ...]] = set()
    loader = GlobalHydra.instance().config_loader()
    for choice, job in by_choice.items():
        try:
            composed = loader.load_sweep_config(config, list(job))
        except (HydraException, YAMLError, UnicodeDecodeError, OSError):  # the sweeper composes it too, and says so
            return None
        boundaries, capture = composed.layers.boundaries, composed.layers.capture
        if capture is not None:
            return None
        layers = _num_layers(composed)
        try:
            if boundaries is None and layers is not None:
                boundaries = default_boundaries(layers)
        except ConfigError:  # the target is too shallow
            continue
        if layers is not None and boundaries is not None and outside(list(boundaries), layers):
            continue  # that job is refused, and the others are not to fail with it
        if boundaries is None:
            said = f"{' '.join(choice)}: its boundaries follow from the target, which is not on this machine yet"
            print(f"{said}; each choice is extracted apart unless layers.capture=[...] names them all", file=sys.stderr)
            return None
        found.add(tuple(boundaries))
    return sorted({b for boundaries in found for b in boundaries}) if len(found) > 1 else None


def _num_layers(cfg: DictConfig) -> int | None:
    """Of the target, where that is known without fetching it."""
    from eagle3.target.peek import peek_target
    from eagle3.target.resolve import cache_folder

    if cfg.target is None or OmegaConf.is_missing(cfg, "target"):
        return None
    if cfg.target.shape is not None:
        return cfg.target.shape.num_layers
    target = OmegaConf.to_object(cfg.target)
    assert isinstance(target, TargetConfig)
    try:
        found = peek_target(target, cache_folder(cfg.paths.cache))
    except Eagle3Error:  # each job says so
        return None
    return None if found is None else found.num_layers


def _digest(config: DictConfig) -> str:
    """8 hexadecimal digits of what is swept: the same command on the same configuration files has the same."""
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    task = {key: value for key, value in container.items() if key not in (*NOT_NAMED, "hydra")}
    given = [item for item in config.hydra.overrides.task if item.split("=")[0].split(".")[0] not in NOT_NAMED]
    params = {str(key): value for key, value in (config.hydra.sweeper.get("params") or {}).items()}
    text = json.dumps([task, sorted(given), params], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _begun(folder: Path, plan: dict[str, Any]) -> TextIO:
    """Takes the sweep's folder for this process, and notes the plan; the kernel frees it, however the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / STOP).unlink(missing_ok=True)
        write_json(folder / SWEEP_FILE, plan)
    except BlockingIOError:
        print(f"error: {folder}: this sweep is being run by another process; wait for it or stop it", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None
    except OSError as error:
        remedy = "make room there, or give another folder" if is_full(error) else "give another folder"
        print(f"error: paths.runs: {folder} can't be written ({error.strerror}); {remedy}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED) from None
    return file
