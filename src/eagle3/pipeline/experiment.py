"""Runs one experiment: each stage in turn, or its artifact reused; tracked from the first to the last."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3.config import Config
from eagle3.config.secrets import redact
from eagle3.config.validate import BENCH, STAGES
from eagle3.data.space import dataset_bytes, require_space
from eagle3.errors import Eagle3Error
from eagle3.files.json_file import read_json, write_json
from eagle3.metrics import JsonlReporter, Reporter, Tail, replay
from eagle3.pipeline.artifacts import Artifact, copy_folder, locked
from eagle3.pipeline.bench import add_bench_figures, measured
from eagle3.pipeline.child import JOB_FILE, run_child, training_module
from eagle3.pipeline.fit import require_fit
from eagle3.pipeline.made import made_by_command
from eagle3.pipeline.replay import Replay
from eagle3.pipeline.reuse import as_left, require_same_content
from eagle3.pipeline.stages import Stages, bench_artifact, captured, inputs_of, left_out, stages_of
from eagle3.pipeline.start import require_ranks
from eagle3.server.patches import plugin_sha256
from eagle3.target.resolve import cache_folder, resolve_target
from eagle3.tracking.console import ConsoleReporter, FanOut
from eagle3.tracking.report import ReportInputs, StageRecord, final_table, write_report
from eagle3.tracking.results import FAILURE
from eagle3.tracking.run import TrackedRun, open_run


def run_experiment(cfg: Config, run_dir: Path, choices: dict[str, str], replay: Replay | None = None) -> None:
    """Everything up to `cfg.until`, of a configuration that `check_start` has passed; `replay`: what it repeats.

    Raises:
        ConfigError: the configuration does not fit the target.
        Eagle3Error: what was finished is kept, and the same command continues.
        KeyboardInterrupt: likewise.
    """
    made = made_by_command(run_dir)
    (run_dir / FAILURE).unlink(missing_ok=True)  # a sweep's job is run again in its folder
    write_json(run_dir / "provenance.json", made)
    (run_dir / "logs").mkdir(exist_ok=True)
    console = ConsoleReporter()
    try:
        with open_run(cfg, run_dir, choices, made, warn=console.note) as tracked:
            target = resolve_target(cfg.target, cache_folder(cfg.paths.cache), console)
            require_fit(cfg, target)
            stages = stages_of(cfg, target)
            made |= _identities(cfg, stages)
            if replay is not None:
                replay.compare_inputs(made)
                made["replay"] = replay.record()
            write_json(run_dir / "provenance.json", made)
            tracked.config({"provenance": made})
            run = _Run(cfg, run_dir, stages, console, tracked)
            for artifact in stages.in_order()[: STAGES.index(cfg.until) + 1]:
                if artifact.stage not in left_out(cfg):
                    run.stage(artifact)
                if artifact.stage == "prepare":
                    require_ranks(cfg, artifact.folder)
            if cfg.bench.in_run:
                run.records.append(measured(cfg, target, run_dir, console, tracked))
            run.report(made)
            if replay is not None:
                made["replay"] = replay.record(outcome := replay.outcome(run_dir))
                write_json(run_dir / "provenance.json", made)
                console.note(outcome)
    except Eagle3Error as error:
        (run_dir / FAILURE).write_text(redact(str(error)) + "\n", encoding="utf-8")
        raise
    finally:
        console.close()


def _identities(cfg: Config, stages: Stages) -> dict[str, Any]:
    """What the artifacts are: the second half of the provenance."""
    made = [artifact for artifact in stages.in_order() if artifact.stage not in left_out(cfg)]
    benched = [bench_artifact(cfg, stages.target)] if cfg.bench.in_run else []
    return {
        **inputs_of(cfg, stages),
        "plugin_sha256": plugin_sha256(),
        "boundaries": stages.boundaries,
        "artifacts": {artifact.stage: str(artifact.folder) for artifact in [*made, *benched]},
    }


@dataclasses.dataclass
class _Run:
    cfg: Config
    run_dir: Path
    stages: Stages
    console: ConsoleReporter
    tracked: TrackedRun
    records: list[StageRecord] = dataclasses.field(default_factory=list)

    def stage(self, artifact: Artifact) -> None:
        """Makes the artifact, or takes the one that is there."""
        began, reused = time.monotonic(), self._as_left(artifact) is None
        if not reused:
            artifact.prepare()
            with locked(artifact.folder, self.console):
                changed = as_left(
                    artifact, self.cfg, self.stages.target, self.console
                )  # another run may have made it while we waited
                reused = changed is None
                if not reused:
                    if artifact.done:
                        self.console.note(f"{changed}: it is looked at, and what is missing or damaged is made again")
                        artifact.reopen()
                    self._make(artifact)
                    artifact.finish()
        if reused:
            self.console.reused(artifact.stage, str(artifact.folder))
            for row in Tail(artifact.folder / "metrics.jsonl").rows():
                replay(row, self.tracked)
        if artifact.stage == "extract":
            self.tracked.dataset(artifact.folder)
        self.records.append(StageRecord(artifact.stage, artifact.folder, time.monotonic() - began, reused))

    def _as_left(self, artifact: Artifact) -> str | None:
        return as_left(artifact, self.cfg, self.stages.target, self.console)

    def _make(self, artifact: Artifact) -> None:
        actions: dict[str, Callable[[Artifact], None]] = {
            "prepare": self._prepare,
            "extract": self._extract,
            "train": self._train,
            "evaluate": self._evaluate,
        }
        with self.console.stage(artifact.stage):
            actions[artifact.stage](artifact)

    @contextmanager
    def _reporting(self, artifact: Artifact) -> Iterator[Reporter]:
        """For a stage in this process: figures go to its own file, to the terminal and to W&B."""
        own = JsonlReporter(artifact.folder / "metrics.jsonl")
        try:
            yield FanOut(self.console, own, self.tracked)
        finally:
            own.close()

    def _prepare(self, artifact: Artifact) -> None:
        from eagle3.data.prepare import run_prepare

        with self._reporting(artifact) as reporter:
            run_prepare(self.cfg, self.stages.target, artifact.folder, reporter, self.run_dir / "logs")
        require_same_content(self.cfg, artifact)

    def _extract(self, artifact: Artifact) -> None:
        from eagle3.data.extract import run_extraction

        prompts = self.stages.prepare.folder
        tokens = read_json(prompts / "prepare.json")["tokens"]
        boundaries = captured(artifact.folder)
        require_space(
            dataset_bytes(tokens, self.stages.target.hidden_size, len(boundaries) + 1, self.cfg.dataset.dtype),
            artifact.folder,
        )
        with self._reporting(artifact) as reporter:
            run_extraction(
                self.cfg, self.stages.target, prompts, artifact.folder, boundaries, reporter, self.run_dir / "logs"
            )

    def _job(self, artifact: Artifact, **more: str) -> dict[str, Any]:
        return {
            "config": dataclasses.asdict(self.cfg),
            "dataset": str(self.stages.extract.folder),
            "prompts": str(self.stages.prepare.folder),
            "target": str(self.stages.target.path),
            "text_prefix": self.cfg.target.text_prefix,
            "boundaries": self.stages.boundaries,
            "out": str(artifact.folder),
            "logs": str(self.run_dir / "logs"),
            "made_by": str(self.run_dir),
            **more,
        }

    def _child(self, module: str, artifact: Artifact, **more: str) -> None:
        log = self.run_dir / "logs" / f"{artifact.stage}.log"
        run_child(module, self._job(artifact, **more), artifact.folder, log, FanOut(self.console, self.tracked))

    def _train(self, artifact: Artifact) -> None:
        trainer = self.cfg.trainer
        for node in range(1, trainer.nodes):
            argv = (sys.executable, "-m", training_module(trainer), str(artifact.folder / JOB_FILE), str(node))
            self.console.note(f"on node {node}, in {Path.cwd()}: {shlex.join(argv)}")
        self._child(training_module(trainer), artifact)

    def _evaluate(self, artifact: Artifact) -> None:
        drafter = self.cfg.evaluate.drafter or str(self.stages.train.folder / "drafter")
        if self.cfg.evaluate.kind != "served":
            return self._child("eagle3.evaluation.main", artifact, drafter=drafter)
        from eagle3.evaluation.served import run_served

        prompts, logs = self.stages.prepare.folder, self.run_dir / "logs"
        with self._reporting(artifact) as reporter:
            run_served(self.cfg, self.stages.target, Path(drafter), prompts, artifact.folder, reporter, logs)

    def report(self, made: dict[str, Any]) -> None:
        """Report, drafter folder, W&B's summary and files, DONE, and the table that ends the run."""
        drafter = None
        trained = self._as_left(self.stages.train) is None
        if trained and self.cfg.evaluate.drafter is None:
            drafter = self.run_dir / "drafter"
            copy_folder(self.stages.train.folder / "drafter", drafter)
        inputs = ReportInputs(
            cfg=self.cfg,
            stages=self.records,
            provenance=made,
            target=made["target"],
            boundaries=self.stages.boundaries,
            drafter=drafter,
        )
        folder = write_report(self.run_dir, inputs)
        for record in self.records:
            if record.name == BENCH:
                add_bench_figures(self.cfg, record.folder, folder)
        self.tracked.summary(read_json(folder / "summary.json"))
        self.tracked.plots(folder)
        if drafter is not None:
            self.tracked.drafter(drafter)
        self.tracked.report(folder)
        (self.run_dir / "DONE").touch()
        self.console.close()
        self.console.console.print(final_table(self.run_dir, inputs))
