"""A stage in a process of its own: started with an explicit job file, watched through the figures that it reports."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from eagle3.config.schema import TrainerConfig
from eagle3.errors import EXIT_BAD_CONFIG, EXIT_INTERRUPTED, ConfigError, TrainingError
from eagle3.files.json_file import write_json
from eagle3.metrics import Reporter, Tail, replay
from eagle3.pipeline.artifacts import held
from eagle3.server.process import ChildTree

JOB_FILE = "job.json"
POLL_S = 0.2
STOP_S = 60.0
"""How long a child may take to save its checkpoint when it is asked to stop."""


def training_module(cfg: TrainerConfig) -> str:
    """What is started to train: the child itself, or what starts one for each device."""
    return "eagle3.training.ranks" if cfg.devices * cfg.nodes > 1 else "eagle3.training.main"


def run_child(module: str, job: dict[str, Any], out: Path, log: Path, reporter: Reporter) -> None:
    """Runs `python -m module out/job.json` to its end; its reports pass on to `reporter` as they come.

    Raises:
        ConfigError, TrainingError: the child failed; the message is its own.
        KeyboardInterrupt: passed on after the child has stopped in order.
    """
    job_file = out / JOB_FILE
    write_json(job_file, job)
    tail = Tail(out / "metrics.jsonl")
    before = [row for row in tail.rows() if "values" in row]
    for row in before:
        replay(row, reporter)
    if before:  # what was said then is not said again: it would be taken for new
        reporter.note(f"goes on in {out}; what was reported before is in its metrics.jsonl")
    # On a CPU, OpenMP threads that spin while they wait slow a shared machine five times over.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", module, str(job_file)]
    with ChildTree(argv, env=environment, log=log, grace_s=STOP_S, keep_open=held()) as child:
        while (code := child.poll()) is None:
            for row in tail.rows():
                replay(row, reporter)
            time.sleep(POLL_S)
        for row in tail.rows():
            replay(row, reporter)
    if code == 0:
        return
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    said = [line for line in child.tail(200).splitlines() if line.startswith("error: ")]
    if said:  # and what to do, which the child alone knows
        kind = ConfigError if code == EXIT_BAD_CONFIG else TrainingError
        raise kind(f"{said[-1].removeprefix('error: ')}\n(log: {log})")
    end = child.tail(15).strip("\n")
    words = f"; the end of its log:\n{end}" if end else "; it has said nothing"
    raise TrainingError(f"{_how(code)}{words}\n(log: {log}; what was saved is kept: the same command continues)")


def _how(code: int) -> str:
    if -code == signal.SIGKILL:
        return "killed (SIGKILL); was memory short?"
    return f"{signal.Signals(-code).name} ended it" if code < 0 else f"it ended with exit code {code}"
