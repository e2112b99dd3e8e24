"""A job of a sweep, in its own process: `python -m eagle3.pipeline.job FOLDER`, whose config.yaml says what to run."""

import sys
from pathlib import Path

from eagle3.config import load_file
from eagle3.config.validate import BENCH
from eagle3.files.json_file import read_json
from eagle3.pipeline.bench import check_bench, run_bench_experiment
from eagle3.pipeline.experiment import run_experiment
from eagle3.pipeline.main import main
from eagle3.pipeline.start import check_start
from eagle3.pipeline.sweep_table import JOB_RECORD


def run(run_dir: Path) -> None:
    """The run of a folder that a sweep prepared."""
    typed, choices = load_file(run_dir / "config.yaml"), read_json(run_dir / JOB_RECORD)["choices"]
    if typed.until == BENCH:
        check_bench(typed)
        run_bench_experiment(typed, run_dir, choices)
    else:
        check_start(typed)
        run_experiment(typed, run_dir, choices)


if __name__ == "__main__":
    sys.exit(main(lambda: run(Path(sys.argv[1]))))
