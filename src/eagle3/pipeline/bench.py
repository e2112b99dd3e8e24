"""Measures the served target under its NCCL profile: alone (`until=bench`: no data, no drafter), or in a run."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from rich.table import Table

from eagle3.config import Config
from eagle3.config.differences import flat
from eagle3.evaluation.bench import bench_command, run_bench
from eagle3.files.json_file import read_json, write_json
from eagle3.metrics import JsonlReporter
from eagle3.pipeline.artifacts import Artifact, locked
from eagle3.pipeline.gpus import require_gpus
from eagle3.pipeline.made import made_by_command
from eagle3.pipeline.stages import bench_artifact
from eagle3.server.nccl import profile_name
from eagle3.target.info import TargetInfo
from eagle3.target.resolve import cache_folder, resolve_target
from eagle3.tracking.console import ConsoleReporter, FanOut
from eagle3.tracking.cost import cost_figures
from eagle3.tracking.run import TrackedRun, open_run, require_login
from eagle3.tracking.summary import StageRecord


def check_bench(cfg: Config) -> None:
    """What can be known to fail before a server starts.

    Raises:
        ConfigError: no W&B login, no GPU, a flag that SGLang does not have, a setting that NCCL can't take.
    """
    require_login(cfg.tracking)
    bench_command(cfg, cfg.target.path)
    require_gpus(cfg)


def run_bench_experiment(cfg: Config, run_dir: Path, choices: dict[str, str]) -> None:
    """The measurement, or the one that is there: of the same target, flags, profile and round.

    Raises:
        Eagle3Error: the server did not start, died, or has not the environment that it was given.
    """
    made = made_by_command(run_dir)
    (run_dir / "logs").mkdir(exist_ok=True)
    console = ConsoleReporter()
    try:
        with open_run(cfg, run_dir, choices, made, warn=console.note) as tracked:
            target = resolve_target(cfg.target, cache_folder(cfg.paths.cache), console)
            artifact = bench_artifact(cfg, target)
            made |= {
                "target": {"name": target.name, "source": target.source, "fingerprint": target.fingerprint},
                "artifacts": {artifact.stage: str(artifact.folder)},
            }
            write_json(run_dir / "provenance.json", made)
            tracked.config({"provenance": made})
            measured(cfg, target, run_dir, console, tracked)
            _report(cfg, artifact, run_dir, tracked)
        console.close()
        console.console.print(_table(cfg, artifact))
    finally:
        console.close()


def measured(
    cfg: Config, target: TargetInfo, run_dir: Path, console: ConsoleReporter, tracked: TrackedRun
) -> StageRecord:
    """The measurement, made or reused: alone, or in a run beside its drafter (`bench.in_run`).

    Raises:
        Eagle3Error: as run_bench_experiment.
    """
    artifact, began = bench_artifact(cfg, target), time.monotonic()
    artifact.prepare()
    with locked(artifact.folder, console):
        if reused := artifact.done:
            console.reused(artifact.stage, str(artifact.folder))
        else:
            _make(cfg, target, artifact, run_dir, console, tracked)
    return StageRecord(artifact.stage, artifact.folder, time.monotonic() - began, reused)


def add_bench_figures(cfg: Config, measured: Path, report: Path) -> dict[str, Any]:
    """The measurement's figures into report/summary.json, beside those that are there, and its time into the run's
    cost; what NCCL did into nccl.json."""
    figures = read_json(report / "summary.json")
    figures |= {name: value for name, value in read_json(measured / "summary.json").items() if name != "samples"}
    figures |= cost_figures(figures, dict(flat(dataclasses.asdict(cfg))))
    write_json(report / "summary.json", figures)
    write_json(report / "nccl.json", read_json(measured / "nccl.json"))
    return figures


def bench_details(cfg: Config, model: str) -> list[str]:
    """What would be started, in lines of a plan; starts nothing. `model`: the target's folder or source."""
    rounds = f"{cfg.bench.repeats} times in turn, after a warm-up"
    return [
        f"server    {bench_command(cfg, model).shown()}",
        f"measures  decoding of {cfg.bench.concurrency} streams, and prefill, {rounds}",
    ]


def _make(
    cfg: Config, target: TargetInfo, artifact: Artifact, run_dir: Path, console: ConsoleReporter, tracked: TrackedRun
) -> None:
    own = JsonlReporter(artifact.folder / "metrics.jsonl")
    try:
        with console.stage(artifact.stage):
            run_bench(cfg, target, artifact.folder, FanOut(console, own, tracked), run_dir / "logs")
    finally:
        own.close()
    artifact.finish()


def _report(cfg: Config, artifact: Artifact, run_dir: Path, tracked: TrackedRun) -> None:
    """report/summary.json with the figures and nccl.json with what NCCL did; W&B's summary; DONE."""
    folder = run_dir / "report"
    folder.mkdir(exist_ok=True)
    known = {"experiment": cfg.name, "target": cfg.target.name, "bench/time": round(time.time())}
    write_json(folder / "summary.json", known)
    tracked.summary(add_bench_figures(cfg, artifact.folder, folder))
    (run_dir / "DONE").touch()


def _table(cfg: Config, artifact: Artifact) -> Table:
    found = read_json(artifact.folder / "summary.json")
    table = Table(title=f"{cfg.target.name}, NCCL profile {profile_name(cfg.nccl.serving)}", title_justify="left")
    for head in ("tokens/s", "median", "smallest", "largest"):
        table.add_column(head, justify="left" if head == "tokens/s" else "right")
    for name, values in found["samples"].items():
        figures = (found[name], min(values), max(values))
        table.add_row(name.removeprefix("bench/").replace("_", " "), *(f"{value:,.1f}" for value in figures))
    return table
