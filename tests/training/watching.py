"""One real training as a run has it: the child, the terminal, a log file and W&B offline, for tests to look at."""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.training.made import VOCAB
from tokenizers import Tokenizer, models

from eagle3.pipeline.child import run_child, training_module
from eagle3.tracking.console import ConsoleReporter, FanOut
from eagle3.tracking.offline import OfflineRun, read_offline
from eagle3.tracking.run import open_run
from eagle3.training.job import Job


@dataclass(frozen=True)
class Watched:
    job: Job
    terminal: str
    """All that was written to a terminal, control characters and all."""
    plain: list[str]
    """Lines of a log file."""
    run: OfflineRun
    files: Path
    """Where W&B keeps the files that rows of history name."""
    home: Path
    """The user's, empty before."""

    def tables(self, name: str) -> list[list[dict[str, Any]]]:
        """The tables of W&B's history under a name."""
        found = []
        for entry in self.run.series(name):
            table = json.loads((self.files / entry["path"]).read_text())
            found.append([dict(zip(table["columns"], row, strict=True)) for row in table["data"]])
        return found


def watch(job: Job, run_dir: Path, expect: type[Exception] | None = None) -> Watched:
    """Trains, as the pipeline does; with `expect`, to the error that ends it."""
    raw = json.loads((job.out / "job.json").read_text())
    terminal, plain = io.StringIO(), io.StringIO()
    shown = ConsoleReporter(Console(file=terminal, force_terminal=True, width=200))
    lines = ConsoleReporter(Console(file=plain, soft_wrap=True, width=200), interval_s=0.1)
    home = run_dir / "home"
    home.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "XDG_", "NETRC"))]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("OMP_NUM_THREADS", "1")

        def train() -> None:
            with (
                open_run(job.config, run_dir, {}, {}, warn=pytest.fail) as tracked,
                shown.stage("train"),
                lines.stage("train"),
            ):
                folders.append(tracked.folder)
                reporter = FanOut(shown, lines, tracked)
                run_child(training_module(job.config.trainer), raw, job.out, run_dir / "train.log", reporter)

        folders: list[Path | None] = []
        if expect is None:
            train()
        else:
            with pytest.raises(expect):
                train()
    assert folders[0] is not None
    files, text = folders[0] / "files", plain.getvalue().splitlines()
    return Watched(job, terminal.getvalue(), text, read_offline(folders[0]), files, home)


def add_tokenizer(target: Path) -> None:
    """Token i is the word `wi`."""
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(target / "tokenizer.json"))
