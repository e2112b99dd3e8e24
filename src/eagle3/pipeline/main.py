"""What surrounds an experiment: signals, exit codes, and errors in words that a user can act on."""

import errno
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from eagle3 import config
from eagle3.config.explain import choices, explain
from eagle3.config.in_file import unreadable
from eagle3.config.load import from_root, plain
from eagle3.config.mistake import sweep_mistake
from eagle3.config.provenance import provenance
from eagle3.config.secrets import check_secrets
from eagle3.config.validate import BENCH
from eagle3.errors import EXIT_BAD_CONFIG, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, Eagle3Error
from eagle3.files.disk import is_full, require_writable
from eagle3.pipeline import sweep_plan
from eagle3.pipeline.inputs import keep_inputs
from eagle3.pipeline.replay import Replay, replay_hint
from eagle3.pipeline.sweep import BASIC_LAUNCHER, end_sweep, sweeping
from eagle3.pipeline.sweep_job import JobFailedError, note_failure, record_failure, run_sweep_job
from eagle3.pipeline.sweep_table import Record

_LAUNCHERS = ("submitit", "ray", "hydra_plugins")
"""Packages whose errors tell of a job that was killed, or of no cluster, not of a mistake in this code."""
_LONGEST_ERROR = 2000
_signals = 0
_terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
_failures: list[Exception] = []


class _Stop(BaseException):
    """A job of this process failed, was recorded, and no further one is to run."""


def _on_signal(number: int, _frame: FrameType | None) -> None:
    """The first stops the run in order; a second is told to wait; a third leaves (children die with this process)."""
    global _signals
    _signals += 1
    if number == signal.SIGHUP:
        _print_nowhere()
    if _signals == 1:
        raise KeyboardInterrupt
    if _signals == 2:
        os.write(2, b"\nstopping: finished work is being kept; once more leaves at once\n")
        return
    os._exit(EXIT_INTERRUPTED)


def _print_nowhere() -> None:
    """The terminal is gone: what is still printed would fail, and the table with it."""
    for descriptor in _terminals:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _hung_up(error: OSError) -> bool:
    """Something was printed to a terminal that is closed: its signal has not been seen yet."""
    if error.errno != errno.EIO or not _terminals:
        return False
    _print_nowhere()
    return True


def main(job: Callable[[], None]) -> int:
    """Runs the Hydra job and returns the exit code: 0 done, 1 failed, 2 bad config, 130 interrupted.

    A sweep ends with the table of its jobs, and with 1 when one of them failed.
    """
    logging.raiseExceptions = False  # a library whose own log can't be written (W&B's, a full disk) fills the screen
    signal.signal(signal.SIGINT, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup says that a closed terminal is to stop nothing
        signal.signal(signal.SIGHUP, _on_signal)
    return end_sweep(_guarded(job))


def _guarded(job: Callable[[], None]) -> int:
    try:
        job()
        if _failures:
            raise _failures[0]
        return EXIT_DONE
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; the same command continues", file=sys.stderr)
        return EXIT_INTERRUPTED
    except _Stop:
        return EXIT_FAILED
    except JobFailedError as error:  # was said when it happened
        return error.exit_code
    except Eagle3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        print(f"error: {(said := explain(sweep_mistake(error, sys.argv)))}", file=sys.stderr)
        if hint := replay_hint(sys.argv, said):
            print(hint, file=sys.stderr)
        return EXIT_BAD_CONFIG
    except (AttributeError, AssertionError) as error:
        # OmegaConf fails so when `key={...}`, or `key.x=...`, meets a typed key that is null.
        if not re.search(r"full_key: \S+|Unexpected type for root: NoneType", str(error)):
            raise
        given = next((item for item in sys.argv if item.lstrip("+").startswith("target.shape")), None)
        if given is None:
            raise
        remedy = (
            "target.shape is null, and can't be filled from the command line; set it in a YAML file of conf/target/"
        )
        print(f"error: {given}: {remedy}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except BrokenPipeError:  # `python run.py mode=plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:  # Hydra makes the run folder before any code of ours runs
        if _hung_up(error):
            return EXIT_INTERRUPTED
        if told := unreadable(error):
            print(f"error: {told}", file=sys.stderr)
            return EXIT_BAD_CONFIG
        print(f"error: {_refused(error)}", file=sys.stderr)
        return EXIT_FAILED
    except Exception as error:
        if told := unreadable(error):
            print(f"error: {told}", file=sys.stderr)
            return EXIT_BAD_CONFIG
        if not sweeping():
            raise
        if _raised_in(error) in _LAUNCHERS:
            told = f"{type(error).__name__}: {str(error).strip()[:_LONGEST_ERROR]}"
            print(
                f"error: the launcher gave up: {told}\nthe same command goes on with what is missing", file=sys.stderr
            )
        else:
            traceback.print_exc()  # and what is known of all jobs is still to be said
        return EXIT_FAILED


def _refused(error: OSError) -> str:
    """Which file, what the system says, and what to do. Of a copy it is the second file that is written."""
    where = error.filename2 or error.filename
    told = f"{where}: {error.strerror}" if where else str(error)
    if is_full(error) or error.errno == errno.EFBIG:
        place = "there" if where else "on the disks of paths.runs and paths.artifacts"
        return f"{told}; make room {place}, or choose others with paths.runs=/folder, paths.artifacts=/folder"
    if isinstance(error, FileNotFoundError):
        return f"{told}; was it removed? Delete the folder of its stage too, and the same command makes it again"
    return f"{told}; runs are written to paths.runs, artifacts to paths.artifacts: give folders that can be written"


def _raised_in(error: Exception) -> str:
    """The package whose code raised it."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).split(".")[0]


def run_job(cfg: DictConfig) -> None:
    """One composed job: checks it, then prints its plan or runs it."""
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    wrong = _wrong_option(hydra.runtime.choices)
    if wrong is None and OmegaConf.is_missing(cfg, "target") and OmegaConf.is_missing(cfg, "dataset"):
        _drop_if_empty(run_dir, cfg)
        print(choices(config.PROJECT / "conf"))
        raise SystemExit(EXIT_BAD_CONFIG)
    overrides = list(hydra.overrides.task)
    record = Record(int(hydra.job.num), overrides) if hydra.mode == RunMode.MULTIRUN else None
    try:
        if wrong is not None:
            raise ConfigError(wrong)
        check_secrets(cfg)
        keep_inputs(cfg)
        typed = config.load(cfg)
        chosen = {str(group): str(option) for group, option in hydra.runtime.choices.items() if option is not None}
        sources = [source.path for source in hydra.runtime.config_sources]
        replay = Replay.of(typed, hydra.runtime.choices, sources, overrides)
        if replay is not None:
            replay.compare(provenance(sys.argv), plain(cfg))
            if typed.until != BENCH:
                replay.compare_inputs_early(typed)
        if typed.mode == "plan":
            from eagle3.pipeline.plan import plan_of, print_plan

            if record is None:
                print_plan(typed)
                require_writable(run_dir)
            else:
                sweep_plan.add(record, plan_of(typed))
        elif record is not None:
            run_sweep_job(cfg, typed, run_dir, record, chosen)
        else:
            from eagle3.config.snapshot import write_snapshot
            from eagle3.pipeline.bench import check_bench, run_bench_experiment
            from eagle3.pipeline.experiment import run_experiment
            from eagle3.pipeline.start import check_start

            (check_bench if typed.until == BENCH else check_start)(typed)
            write_snapshot(run_dir, cfg, chosen, overrides)
            if typed.until == BENCH:
                run_bench_experiment(typed, run_dir, chosen)
            else:
                run_experiment(typed, run_dir, chosen, replay)
    except (Eagle3Error, OmegaConfBaseException) as error:
        # Hydra would put a line of its own before the message.
        if record is None or cfg.get("mode") != "run":
            if record is not None:
                sweep_plan.add(record, str(error) if isinstance(error, Eagle3Error) else explain(error))
            else:
                _failures.append(error)
            return
        record_failure(record, run_dir, error)
        if cfg.sweep.fail_fast or hydra.sweeper.get("max_batch_size") == 1:
            if str(hydra.launcher._target_) == BASIC_LAUNCHER:
                raise _Stop from error  # Hydra would put a line of its own before the table
            raise JobFailedError(str(error)) from error  # so that Hydra stops
    except OSError as error:
        if error.errno in (errno.EIO, errno.EPIPE):  # what it prints to is gone
            raise
        if record is None:
            _failures.append(error)
            return
        if cfg.mode == "run":
            note_failure(record, run_dir, _refused(error))
        if str(hydra.launcher._target_) != BASIC_LAUNCHER:
            raise
        print(f"error: {_refused(error)}", file=sys.stderr)
        raise _Stop from error
    finally:
        _drop_if_empty(run_dir, cfg)


def _wrong_option(choices: Mapping[str, Any]) -> str | None:
    """Of the groups that conf/config.yaml calls optional: there Hydra takes a name that is none, and ignores it."""
    for group in ("debug", "snapshot"):
        there = GlobalHydra.instance().config_loader().get_group_options(group)
        if (chosen := choices.get(group)) is not None and chosen not in there:
            options = f"there are: {', '.join(there)}" if there else "there is none; give --config-dir a run's folder"
            return f"{group}: {chosen!r} is no option; {options}"
    return None


def _drop_if_empty(run_dir: Path, cfg: DictConfig) -> None:
    """Hydra makes the run folder before it calls us; one that nothing was written to is only clutter."""
    root = Path(from_root(str(cfg.paths.runs)))
    below = [folder for folder in run_dir.parents if root in folder.parents]  # several where the name has a /
    for folder in (run_dir, *below):
        try:
            folder.rmdir()
        except OSError:
            return
