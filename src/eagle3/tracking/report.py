"""The report of a run: `report/{summary.json, report.md, *.png}`, and the table that ends it on the terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from eagle3.config.schema import Config


@dataclass(frozen=True)
class StageRecord:
    """What became of one stage in this run."""

    name: str
    """prepare, extract, train or evaluate."""
    folder: Path
    """Its artifact."""
    seconds: float
    """Wall time spent in this run."""
    reused: bool
    """The artifact was there already."""


@dataclass(frozen=True)
class ReportInputs:
    """All that a report is made from; stages that did not run are missing from `stages`."""

    cfg: Config
    stages: list[StageRecord]
    provenance: dict[str, Any]
    target: dict[str, Any]
    """At least name, source and path, as in TargetInfo."""
    boundaries: list[int]
    drafter: Path | None = None
    """The drafter folder to serve, once there is one."""


def write_report(run_dir: Path, inputs: ReportInputs) -> Path:
    """Writes `run_dir/report/` and returns that folder; works when only some stages ran (until=extract)."""
    raise NotImplementedError


def final_table(run_dir: Path, inputs: ReportInputs) -> RenderableType:
    """What the terminal shows last: the results, and where everything is."""
    raise NotImplementedError
