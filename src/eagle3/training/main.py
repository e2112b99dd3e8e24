"""`python -m eagle3.training.main JOB.json`: the training child. Plain lines on stdout, figures in metrics.jsonl."""

import logging
import os
import sys
import warnings
from pathlib import Path

from eagle3.errors import EXIT_DONE, ConfigError, Eagle3Error, TrainingError
from eagle3.metrics import JsonlReporter
from eagle3.training.ranks import log_apart
from eagle3.training.stop import StopSignal


def main(arguments: list[str] | None = None) -> int:
    """The process's exit code (errors.py)."""
    stop = StopSignal()
    stop.install()
    try:
        _main(sys.argv[1:] if arguments is None else arguments, stop)
    except Eagle3Error as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_DONE


def _main(arguments: list[str], stop: StopSignal) -> None:
    if len(arguments) != 1:
        raise ConfigError("usage: python -m eagle3.training.main JOB.json")
    # Lightning takes seconds to import; a wrong job is told before.
    from eagle3.training.job import Job

    job = Job.load(Path(arguments[0]))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        log_apart(job.logs, int(os.environ["RANK"]))
    from eagle3.training.lean import import_lightning

    import_lightning()
    from eagle3.training.logger import Silent
    from eagle3.training.machine import Machine
    from eagle3.training.run import train

    # What Lightning has to say is about itself: tips, and which devices there are not.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    machine = Machine.of(job.config.trainer)
    try:
        reporter = JsonlReporter(job.out / "metrics.jsonl") if machine.rank == 0 else Silent()
        train(job, machine, reporter, stop)
    except OSError as error:
        raise TrainingError(f"{job.out}: {error}. Make room or fix the folder; the same command continues.") from error


if __name__ == "__main__":
    sys.exit(main())
