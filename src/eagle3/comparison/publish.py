"""A comparison written beside the runs it is of, and logged to W&B as a run of its own in their group."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from eagle3.comparison.noise import Verdict
from eagle3.comparison.page import page
from eagle3.comparison.plots import write_pngs
from eagle3.comparison.render import csv_text, markdown, records
from eagle3.comparison.table import Comparison
from eagle3.config import load_file
from eagle3.config.provenance import provenance
from eagle3.tracking.run import open_run

FOLDER = "comparison"


def write(comparison: Comparison, folder: Path) -> None:
    """comparison.html, comparison.md, comparison.csv and the plots as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in ((".html", page), (".md", markdown), (".csv", csv_text)):
        (folder / f"comparison{ending}").write_text(text(comparison), encoding="utf-8")
    write_pngs(comparison, folder)


def publish(sweep: Path, found: Comparison, warn: Callable[[str], None] | None = None) -> None:
    """Writes a sweep's comparison to sweep/comparison/, and logs it to W&B as the runs are logged.

    W&B's run has the job type `compare` and the runs' group; its summary says `compare/best`, `.../best_accept_length`,
    `.../exceeds_noise`, `.../runs`; of each group, `compare/simulated/best` and so on, where there are several.
    """
    folder = sweep / FOLDER
    write(found, folder)
    first = found.all_runs[0].folder
    cfg = load_file(first / "config.yaml")
    group = cfg.tracking.group or cfg.name
    cfg = dataclasses.replace(cfg, tracking=dataclasses.replace(cfg.tracking, group=group))
    with open_run(cfg, sweep, {}, provenance(sys.argv), warn, job_type="compare") as tracked:
        tracked.comparison(folder, records(found), summary(found))


def summary(found: Comparison) -> dict[str, str | int | float | bool]:
    """The outcome as flat figures."""
    told: dict[str, str | int | float | bool] = {
        "compare/runs": len(found.all_runs),
        "compare/variants": len(found.variants or found.served),
        "compare/left_out": len(found.notes),
    }
    for group in found.evaluated:
        assert group.best is not None
        name = f"compare/{group.slug}/" if group.slug else "compare/"
        told[f"{name}measured"] = group.measured
        told[f"{name}best"] = group.best.label
        told[f"{name}best_run"] = str(group.best.folders[0])
        told[f"{name}best_accept_length"] = group.best.accept_length() or 0.0
        judged = [verdict for v in group.variants if isinstance(verdict := group.verdict(v), Verdict)]
        if judged:
            told[f"{name}exceeds_noise"] = min(judged, key=lambda verdict: verdict.difference).exceeds
    for group in found.targets:
        name = f"compare/{group.slug}/" if group.slug else "compare/"
        for ranking in group.rankings:
            told[f"{name}best_{ranking.figure.removeprefix('bench/')}"] = ranking.places[0].variant.label
    return told
