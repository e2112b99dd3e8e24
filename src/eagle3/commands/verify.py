"""`eagle3 verify PATH`: reads everything again and names what is wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import made_of
from eagle3.errors import EXIT_DONE, EXIT_FAILED, ConfigError, Eagle3Error
from eagle3.tracking.results import read_json


def run_verify(
    path: Path,
    every: bool = False,
    target: Path | None = None,
    boundaries: list[int] | None = None,
    sglang_version: str | None = None,
) -> int:
    """Verifies a dataset, an export of one, or a drafter; of a run, both. Faults go to standard output, progress to
    standard error.

    Args:
        every: name all faults instead of the first.
        target: the model that a dataset was made with or a drafter is for; a drafter's is found by itself where it lies
            in a run or a training.
        boundaries: what a drafter of others was trained on.
        sglang_version: that will serve it; ours say which, for others it is the installed one.

    Raises:
        ConfigError: the path is none of these, or the target isn't known.
    """
    faulty = False
    for kind, folder in _parts(path):
        count = 0
        if kind is Kind.DRAFTER:
            faults = _drafter_faults(folder, target, boundaries, sglang_version)
        else:
            faults = _export_faults(folder) if kind is Kind.EXPORTED else _dataset_faults(folder, target)
        for fault in faults:
            print(f"{folder}: {fault}", flush=True)
            count += 1
            if not every:
                return EXIT_FAILED
        if count == 0:
            print(f"{folder}: {kind}, nothing wrong")
        faulty = faulty or count > 0
    return EXIT_FAILED if faulty else EXIT_DONE


def _parts(path: Path) -> list[tuple[Kind, Path]]:
    kind = kind_of(path)
    if kind in (Kind.DATASET, Kind.DRAFTER, Kind.EXPORTED):
        return [(kind, path)]
    if kind is Kind.BEGUN:
        raise ConfigError(
            f"{path}: {kind}. Its first shard is not finished, so there is nothing to verify; the same command "
            "continues, and looks at what is there"
        )
    parts: list[tuple[Kind, Path]] = []
    if kind is Kind.RUN:
        dataset = (read_json(path / "provenance.json").get("artifacts") or {}).get("extract")
        if dataset and (Path(dataset) / "manifest.json").is_file():
            parts.append((Kind.DATASET, Path(dataset)))
    if kind in (Kind.RUN, Kind.TRAINING) and (path / "drafter").is_dir():
        parts.append((Kind.DRAFTER, path / "drafter"))
    if not parts:
        raise ConfigError(f"{path}: {kind} with nothing to verify; give a dataset, a drafter, or a run that has them")
    return parts


def _dataset_faults(folder: Path, target: Path | None) -> Iterator[object]:
    from eagle3.data.manifest import NAME as MANIFEST
    from eagle3.data.verify import verify
    from eagle3.target.info import read_info

    if target is not None:
        made_with = read_json(folder / MANIFEST).get("target") or {}
        info = read_info(target, trust_remote_code=True)
        if info.fingerprint != made_with.get("fingerprint"):
            yield f"{MANIFEST}: the dataset was made with {made_with.get('name')}, another model than {target}"
    with _bar(DownloadColumn(binary_units=True), TransferSpeedColumn()) as bar:
        task = bar.add_task("reading", total=None)
        damaged = False
        for fault in verify(folder, lambda done, total: bar.update(task, completed=done, total=total)):
            if fault.file != MANIFEST and not damaged:
                damaged = True
                _withdraw(folder)
            yield fault


def _bar(*columns: ProgressColumn) -> Progress:
    shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    return Progress(*shown, console=Console(file=sys.stderr), transient=True)


def _export_faults(folder: Path) -> Iterator[str]:
    from eagle3.data.exchange.checking import CHECKED, check_export, not_checked
    from eagle3.data.exchange.marker import EXPORT

    marker, faulty = read_json(folder / EXPORT), False
    with _bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("files", total=None)
        for fault in check_export(folder, marker, lambda done, total: bar.update(task, completed=done, total=total)):
            faulty = True
            yield fault
    if not faulty:
        print(f"checked: {CHECKED}\nnot checked: {not_checked(marker)}")


def _withdraw(folder: Path) -> None:
    """What was taken to be right no longer is: the command that made it looks at every byte again."""
    from eagle3.data.checked import NAME, withdraw

    remedy = "the command that made it, run again, reads every shard and extracts what is damaged, nothing else"
    try:
        withdraw(folder)
    except OSError as error:
        remedy = f"{folder / NAME} can't be removed ({error.strerror}); remove it: then {remedy}"
    print(remedy, file=sys.stderr)


def _drafter_faults(
    folder: Path, target: Path | None, boundaries: list[int] | None, sglang_version: str | None
) -> Iterator[object]:
    from eagle3.drafter.capture import not_served
    from eagle3.drafter.check import check_drafter
    from eagle3.drafter.folder import read_drafter
    from eagle3.target.info import read_info

    near, prefix = target_of(folder)
    if target is None and near is None:
        raise ConfigError(f"{folder}: which target is it for? Add --target FOLDER, the model's local folder")
    info = read_info(target or Path(str(near)), text_prefix=prefix, trust_remote_code=True)
    own = read_json(folder / "config.json").get("eagle3") or {}
    version = sglang_version or (None if own else installed_version())
    try:
        yield from check_drafter(folder, info, boundaries, version)
        files = read_drafter(folder)
        served_by = version or own.get("sglang_version")
        if files.layout == "sglang" and served_by is not None:
            yield from not_served(files.shape(), served_by)
    except Eagle3Error as error:
        yield error
        return
    except (KeyError, TypeError, ValueError):  # has been named
        return
    trained_for = own.get("target") or {}
    if trained_for.get("fingerprint") not in (None, info.fingerprint):
        yield f"it was trained for another model than {info.path}: its weights or config.json have changed since"


def installed_version() -> str:
    """The SGLang here, by which the capture ids of others' drafters are read. Raises ServerError without one."""
    from eagle3.server.arguments import installed

    return installed(None).version


def target_of(folder: Path) -> tuple[Path | None, str]:
    """(local folder of the target, prefix of its text model) from the run or training that a drafter lies in."""
    job = read_json(folder.absolute().parent / "job.json")
    made = made_of(folder)
    path = job.get("target") or (made.get("target") or {}).get("path")
    prefix = job.get("text_prefix") or (made.get("target") or {}).get("text_prefix") or ""
    return (Path(path) if path and Path(path).is_dir() else None), prefix
