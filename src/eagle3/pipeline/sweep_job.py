"""One job of a sweep: started in a process of its own (job.py), watched, and its end recorded.

So no job inherits another's environment, CUDA context, NCCL settings or W&B run, whatever launcher runs them.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from eagle3.config import Config
from eagle3.config.explain import explain
from eagle3.config.snapshot import resolved_yaml, write_snapshot
from eagle3.errors import EXIT_INTERRUPTED, Eagle3Error
from eagle3.pipeline.artifacts import DONE, read_json
from eagle3.pipeline.sweep_table import Record, varied_in

LOG = "job.log"
POLL_S = 0.2
STOP_S = 120.0
"""How long a job may take to stop in order: its trainer saves a checkpoint first."""
_LONGEST_FAILURE = 2000


class JobFailedError(Eagle3Error):
    """A job of a sweep failed in its own process. The others run."""

    def __init__(self, cause: str, seconds: float = 0.0) -> None:
        super().__init__(cause)
        self.seconds = seconds


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
    if _is_done(cfg, typed, run_dir):
        print(f"{what}: done before ({run_dir})", file=sys.stderr)
        return
    print(what, file=sys.stderr)
    (run_dir / DONE).unlink(missing_ok=True)
    (run_dir / "logs").mkdir(exist_ok=True)
    write_snapshot(run_dir, cfg, choices, record.overrides)
    log = run_dir / "logs" / LOG
    record.choices, record.log, record.status = choices, str(log), "running"
    record.write(run_dir)
    began = time.monotonic()
    try:
        code, tail = _in_a_process_of_its_own(run_dir, log)
    except KeyboardInterrupt:
        record.end(run_dir, "interrupted", time.monotonic() - began)
        raise
    seconds = time.monotonic() - began
    if code == EXIT_INTERRUPTED:  # someone stopped the job itself
        record.end(run_dir, "interrupted", seconds)
        raise KeyboardInterrupt
    if code != 0 or not (run_dir / DONE).is_file():
        raise JobFailedError(_cause(code, tail), seconds)
    record.end(run_dir, "done", seconds)


def record_failure(record: Record, run_dir: Path, error: Exception) -> None:
    """Writes and says why the job failed: in its own process, or before one was started."""
    failure = str(error) if isinstance(error, Eagle3Error) else explain(error)
    record.end(run_dir, "failed", getattr(error, "seconds", 0.0), failure[:_LONGEST_FAILURE])
    print(f"job {record.number} failed: {failure.splitlines()[0]}", file=sys.stderr)


def _is_done(cfg: DictConfig, typed: Config, run_dir: Path) -> bool:
    """Whether the folder holds this very run, finished, and what it made would be made the same way today."""
    from eagle3.pipeline.stages import find_inputs, wanted_artifacts
    from eagle3.target.peek import peek_target
    from eagle3.target.resolve import cache_folder

    config = run_dir / "config.yaml"
    if (
        not (run_dir / DONE).is_file()
        or not config.is_file()
        or config.read_text(encoding="utf-8") != resolved_yaml(cfg)
    ):
        return False
    find_inputs(typed)
    target = peek_target(typed.target, cache_folder(typed.paths.cache))
    if target is None:
        return False
    made: dict[str, Any] = read_json(run_dir / "provenance.json").get("artifacts", {})
    return all(item.done and made.get(item.stage) == str(item.folder) for item in wanted_artifacts(typed, target))


def _in_a_process_of_its_own(run_dir: Path, log: Path) -> tuple[int, str]:
    """(exit code, end of the log). What the job says is shown as it comes."""
    from eagle3.server.process import ChildTree

    argv = [sys.executable, "-m", "eagle3.pipeline.job", str(run_dir)]
    at = log.stat().st_size if log.exists() else 0
    with ChildTree(argv, env=os.environ, log=log, grace_s=STOP_S) as child, log.open("rb") as written:
        written.seek(at)
        unfinished = b""
        while True:
            code = child.poll()
            *lines, unfinished = (unfinished + written.read()).split(b"\n")
            for line in lines:
                print(f"  {line.decode(errors='replace')}", file=sys.stderr)
            if code is not None:
                return code, child.tail(200)
            time.sleep(POLL_S)


def _cause(code: int, tail: str) -> str:
    """Its own words, from the last error that it names on; else how it ended."""
    lines = tail.splitlines()
    at = max((i for i, line in enumerate(lines) if line.startswith("error: ")), default=None)
    if at is not None:
        return "\n".join(lines[at:]).removeprefix("error: ")
    how = f"{signal.Signals(-code).name} ended it" if code < 0 else f"it ended with exit code {code}"
    return "\n".join([f"{how}: {lines[-1].strip()}" if lines else how, *lines[-10:]])
