"""`eagle3 verify PATH`: reads everything again and names what is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from eagle3.commands.kinds import Kind, kind_of
from eagle3.errors import EXIT_DONE, EXIT_FAILED, ConfigError, Eagle3Error
from eagle3.tracking.results import read_json


def run_verify(path: Path, every: bool = False) -> int:
    """Verifies a dataset or a drafter, or both of a run. Faults go to standard output, progress to standard error.

    Raises:
        ConfigError: the path is none of these.
    """
    faulty = False
    for kind, folder in _parts(path):
        count = 0
        for fault in _faults(kind, folder):
            print(f"{folder}: {fault}")
            count += 1
            if not every:
                break
        if count == 0:
            print(f"{folder}: {kind}, nothing wrong")
        elif not every:
            return EXIT_FAILED
        faulty = faulty or count > 0
    return EXIT_FAILED if faulty else EXIT_DONE


def _parts(path: Path) -> list[tuple[Kind, Path]]:
    kind = kind_of(path)
    if kind in (Kind.DATASET, Kind.DRAFTER):
        return [(kind, path)]
    if kind is Kind.TRAINING and (path / "drafter").is_dir():
        return [(Kind.DRAFTER, path / "drafter")]
    if kind is Kind.RUN:
        dataset = (read_json(path / "provenance.json").get("artifacts") or {}).get("extract")
        parts = [(Kind.DATASET, Path(dataset))] if dataset and (Path(dataset) / "manifest.json").is_file() else []
        return parts + ([(Kind.DRAFTER, path / "drafter")] if (path / "drafter").is_dir() else [])
    raise ConfigError(f"{path}: {kind} has nothing to verify; give a dataset, a drafter or a run")


def _faults(kind: Kind, folder: Path) -> Iterator[object]:
    if kind is Kind.DRAFTER:
        from eagle3.drafter.export import check_drafter

        try:
            check_drafter(folder)
        except Eagle3Error as error:
            yield error
        return
    from eagle3.data.verify import verify

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=None)
        yield from verify(folder, lambda done, total: bar.update(task, completed=done, total=total))
