"""`python -m eagle3.evaluation.main JOB.json`: the evaluation child."""

import sys
from pathlib import Path

from eagle3.errors import EXIT_DONE, ConfigError, Eagle3Error
from eagle3.metrics import JsonlReporter
from eagle3.training.stop import StopSignal


def main(arguments: list[str] | None = None) -> int:
    """The process's exit code (errors.py). Interrupted, a chain keeps the answers it has; a simulation begins anew."""
    StopSignal().install()
    try:
        _main(sys.argv[1:] if arguments is None else arguments)
    except Eagle3Error as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_DONE


def _main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise ConfigError("usage: python -m eagle3.evaluation.main JOB.json")
    from eagle3.training.job import Job

    job = Job.load(Path(arguments[0]))
    from eagle3.evaluation.chain_run import evaluate_chain
    from eagle3.evaluation.run import evaluate
    from eagle3.training.machine import Machine

    measure = evaluate_chain if job.config.evaluate.kind == "chain" else evaluate
    try:
        measure(job, Machine.of(job.config.trainer, devices=1), JsonlReporter(job.out / "metrics.jsonl"))
    except OSError as error:
        where, why = error.filename or job.out, error.strerror or error
        raise Eagle3Error(
            f"{where}: {why}. Make room, or let this user read and write there, and run it again."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
