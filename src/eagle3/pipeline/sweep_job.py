"""One job of a sweep: started in a process of its own (job.py), watched, and its end recorded.

So no job inherits another's environment, CUDA context, NCCL settings or W&B run, whatever launcher runs them, and
wherever: the sweep and its jobs know of each other by the sweep's folder alone.
"""

import math
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eagle3.config import Config
from eagle3.config.explain import explain
from eagle3.config.load import PROJECT
from eagle3.config.snapshot import resolved_yaml, write_snapshot
from eagle3.config.validate import BENCH, STAGES
from eagle3.errors import EXIT_INTERRUPTED, Eagle3Error
from eagle3.files.disk import free_bytes, gib
from eagle3.files.json_file import json_or_empty, read_json
from eagle3.pipeline.artifacts import DONE, held, is_locked, locked
from eagle3.pipeline.devices import Taken, taken
from eagle3.pipeline.sweep_table import JOB_RECORD, Record, read_records, varied_in
from eagle3.tracking.console import ConsoleReporter

LOG = "job.log"
STOP = "STOP"
"""In a sweep's folder: it was interrupted, and jobs that run elsewhere stop too."""
NOT_NAMED = ("sweep", "mode")
"""Keys that change how a sweep is run, not what: with another value it is the same sweep."""
POLL_S = 0.2
STOP_S = 120.0
"""How long a job may take to stop in order: its trainer saves a checkpoint first."""
_LONGEST_FAILURE = 2000
_unwritten: dict[Path, Record] = {}
"""Jobs of this process whose end the disk did not take, by run folder."""
_OF_A_STAGE = re.compile(rf"\s*({'|'.join((*STAGES, BENCH))}): ")


class JobFailedError(Eagle3Error):
    """A job of a sweep failed in its own process. The others run."""

    def __init__(self, cause: str, seconds: float = 0.0, said: bool = False) -> None:
        super().__init__(cause)
        self.seconds = seconds
        self.said = said
        """Whether the job itself printed the cause."""


def run_sweep_job(cfg: DictConfig, typed: Config, run_dir: Path, record: Record, choices: dict[str, str]) -> None:
    """Runs the job to its end, or finds it done.

    Args:
        record: who it is; its outcome is written to job.json.

    Raises:
        JobFailedError: it failed.
        KeyboardInterrupt: passed on after the job has stopped in order.
    """
    sweep = run_dir.parent
    if typed.tracking.group is None:
        cfg.tracking.group = f"{typed.name}/{sweep.name}"
    what = f"job {record.number}: {' '.join(varied_in(sweep, record)) or 'as configured'}"
    console = ConsoleReporter()
    with locked(run_dir, console):  # a launcher that outlived its sweep may be running it still
        if _is_done(cfg, typed, run_dir):
            print(f"{what}: done before ({run_dir})", file=sys.stderr)
            if json_or_empty(run_dir / JOB_RECORD).get("status") != "done":  # damaged, or a full disk did not take it
                record.choices, record.log = choices, str(run_dir / "logs" / LOG)
                _end(record, run_dir, "done", None)
            return
        with taken(typed.sweep.devices, console.note) as device:
            if (sweep / STOP).exists():
                return
            print(what, file=sys.stderr)
            (run_dir / DONE).unlink(missing_ok=True)
            (run_dir / "logs").mkdir(exist_ok=True)
            write_snapshot(run_dir, cfg, choices, record.overrides)
            record.choices, record.log, record.status = choices, str(run_dir / "logs" / LOG), "running"
            record.write(run_dir)
            _watch(run_dir, record, device)


def _watch(run_dir: Path, record: Record, device: Taken) -> None:
    """Raises as run_sweep_job."""
    began = time.monotonic()
    try:
        code, tail = _in_a_process_of_its_own(run_dir, device)
    except KeyboardInterrupt:
        _end(record, run_dir, "interrupted", time.monotonic() - began)
        raise
    seconds, stopped = time.monotonic() - began, (run_dir.parent / STOP).exists()
    if code == 0 and (run_dir / DONE).is_file():
        _end(record, run_dir, "done", seconds)
    elif stopped or code == EXIT_INTERRUPTED:
        _end(record, run_dir, "interrupted", seconds)
        if not stopped:  # someone stopped the job itself
            raise KeyboardInterrupt
    else:
        cause = _cause(code, tail)
        if not tail.strip():  # a full disk took nothing of what it said
            cause += f"; its log is empty, on a disk with {gib(free_bytes(run_dir))} free"
        raise JobFailedError(cause, seconds, said="\nerror: " in f"\n{tail}")


def _end(record: Record, run_dir: Path, status: str, seconds: float | None, failure: str | None = None) -> None:
    """Notes the outcome, and stops nothing where the disk refuses it: the table of this process has it all the same."""
    try:
        record.end(run_dir, status, seconds, failure)
    except OSError:
        _unwritten[run_dir] = record


def stop_elsewhere(sweep: Path) -> None:
    """Stops the jobs that a launcher runs in other processes or on other machines, and waits for them."""
    with suppress(OSError):  # a full disk; this process's own job has stopped
        (sweep / STOP).touch()
    _wait_for_running(sweep, "stopping", STOP_S)


def wait_elsewhere(sweep: Path) -> None:
    """Until those jobs have ended: a launcher that lost one does not wait for the others."""
    _wait_for_running(sweep, "waiting for", math.inf)


def _wait_for_running(sweep: Path, doing: str, longest_s: float) -> None:
    began, said = time.monotonic(), False
    while time.monotonic() - began < longest_s:
        running = [record.number for record in read_records(sweep) if record.status == "running"]
        running = [number for number in running if is_locked(sweep / str(number))]
        if not running:
            return
        if not said:
            print(f"{doing} job {', '.join(map(str, running))}", file=sys.stderr)
        said = True
        time.sleep(POLL_S)


def settle(sweep: Path, records: list[Record], interrupted: bool) -> None:
    """Of a job whose process was killed it is recorded now: a scheduler's limit of time or memory gives no warning."""
    for i, record in enumerate(records):
        run_dir = sweep / str(record.number)
        if (known := _unwritten.get(run_dir)) is not None:
            records[i] = known
        elif record.status == "running" and not is_locked(run_dir):
            gone = "its process is gone: was it killed, or did it reach the scheduler's limit of time or memory?"
            status, failure = ("interrupted", None) if interrupted else ("failed", gone)
            _end(record, run_dir, status, record.seconds or 0.0, failure)


def note_failure(record: Record, run_dir: Path, failure: str, seconds: float = 0.0) -> None:
    """Writes why the job failed, where the disk takes it."""
    _end(record, run_dir, "failed", seconds, failure[:_LONGEST_FAILURE])


def record_failure(record: Record, run_dir: Path, error: Exception) -> None:
    """Writes and says why the job failed: in its own process, or before one was started."""
    failure = str(error) if isinstance(error, Eagle3Error) else explain(error)
    note_failure(record, run_dir, failure, getattr(error, "seconds", 0.0))
    said = isinstance(error, JobFailedError) and error.said
    print(f"job {record.number} failed{'' if said else f': {failure.splitlines()[0]}'}", file=sys.stderr)


def _is_done(cfg: DictConfig, typed: Config, run_dir: Path) -> bool:
    """Whether the folder holds this very run, finished, and what it made would be made the same way today."""
    from eagle3.pipeline.inputs import find_inputs
    from eagle3.pipeline.stages import wanted_artifacts
    from eagle3.target.peek import peek_target
    from eagle3.target.resolve import cache_folder

    config = run_dir / "config.yaml"
    if not (run_dir / DONE).is_file() or not config.is_file():
        return False
    if _what(config.read_text(encoding="utf-8")) != _what(resolved_yaml(cfg)):
        return False
    find_inputs(typed)
    target = peek_target(typed.target, cache_folder(typed.paths.cache))
    if target is None:
        return False
    made: dict[str, Any] = read_json(run_dir / "provenance.json").get("artifacts", {})
    return all(item.done and _is_place(made.get(item.stage), item.folder) for item in wanted_artifacts(typed, target))


def _is_place(noted: object, folder: Path) -> bool:
    """Whether a run noted this folder; it may have been elsewhere then, in the project, which was moved since."""
    if noted == str(folder):
        return True
    within = folder.relative_to(PROJECT).parts if folder.is_relative_to(PROJECT) else ()
    return bool(within) and Path(str(noted)).parts[-len(within) :] == within


def _what(text: str) -> dict[str, Any]:
    """A configuration without what says how a sweep is run."""
    found = OmegaConf.to_container(OmegaConf.create(text))
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key not in NOT_NAMED}


def _in_a_process_of_its_own(run_dir: Path, device: Taken) -> tuple[int, str]:
    """(exit code, end of the log). What the job says is shown as it comes."""
    from eagle3.server.process import ChildTree

    argv, log = [sys.executable, "-m", "eagle3.pipeline.job", str(run_dir)], run_dir / "logs" / LOG
    at = log.stat().st_size if log.exists() else 0
    environment, kept = {**os.environ, **device.environment}, (*held(), *device.descriptors)
    with ChildTree(argv, env=environment, log=log, grace_s=STOP_S, keep_open=kept) as child, log.open("rb") as written:
        written.seek(at)
        unfinished = b""
        while True:
            code = child.poll()
            *lines, unfinished = (unfinished + written.read()).split(b"\n")
            for line in lines:
                print(f"  {line.decode(errors='replace')}", file=sys.stderr)
            if code is not None:
                return code, child.tail(200)
            if (run_dir.parent / STOP).exists():
                return child.stop(), child.tail(200)
            time.sleep(POLL_S)


def _cause(code: int, tail: str) -> str:
    """Its own words, from the last error that it names on; else how it ended."""
    lines = tail.splitlines()
    at = max((i for i, line in enumerate(lines) if line.startswith("error: ")), default=None)
    if at is not None:
        return "\n".join(lines[at:]).removeprefix("error: ")
    if code >= 0:
        how = f"it ended with exit code {code}"
        return "\n".join([f"{how}: {lines[-1].strip()}" if lines else how, *lines[-10:]])
    stage = next((found[1] for line in reversed(lines) if (found := _OF_A_STAGE.match(line))), None)
    during = f" in {stage}" if stage else ""
    if -code == signal.SIGKILL:
        return f"killed{during} (SIGKILL); was memory short?"
    return "\n".join([f"{signal.Signals(-code).name} ended it{during}", *lines[-10:]])
