"""`eagle3 verify PATH`: reads everything again and names what is wrong."""

import shlex
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

from eagle3.commands.drafters import installed_version, read_target, sglang_version_of, unknown_version
from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import artifacts_of, config_of, part
from eagle3.config.validate import STAGES
from eagle3.errors import EXIT_DONE, EXIT_FAILED, ConfigError
from eagle3.files.json_file import json_or_empty


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
    version = sglang_version_of(sglang_version)
    faulty = False
    for kind, folder in _parts(path):
        count = 0
        for fault in _faults_of(kind, folder, target, boundaries, version):
            print(f"{folder}: {fault}", flush=True)
            count += 1
            if not every:
                return EXIT_FAILED
        if count == 0:
            print(f"{folder}: {kind}, nothing wrong")
        faulty = faulty or count > 0
    return EXIT_FAILED if faulty else EXIT_DONE


def _faults_of(
    kind: Kind, folder: Path, target: Path | None, boundaries: list[int] | None, version: str | None
) -> Iterator[object]:
    if kind is Kind.DATASET:
        return _dataset_faults(folder, target)
    if kind is Kind.EXPORTED:
        return _export_faults(folder)
    if kind in (Kind.RUN, Kind.TRAINING):
        return iter([f"finished, and its drafter is missing (drafter/). {_remedy(folder)}"])
    return _drafter_faults(folder, target, boundaries, version)


def _remedy(folder: Path) -> str:
    """Of a run or training without its drafter."""
    training = artifacts_of(folder).get("train")
    if training is not None and (there := training / "drafter").is_dir():
        return f"Its training has it: {shlex.join(['eagle3', 'export', str(there), '--format', 'sglang'])}"
    return "The same command makes it again, of a run in the folder of a new one"


def _parts(path: Path) -> list[tuple[Kind, Path]]:
    kind = kind_of(path)
    if kind in (Kind.DATASET, Kind.DRAFTER, Kind.DAMAGED, Kind.EXPORTED):
        return [(kind, path)]
    if kind is Kind.BEGUN:
        raise ConfigError(
            f"{path}: {kind}. Its first shard is not finished, so there is nothing to verify; the same command "
            "continues, and looks at what is there"
        )
    parts: list[tuple[Kind, Path]] = []
    if kind is Kind.RUN:
        dataset = artifacts_of(path).get("extract")
        if dataset is not None and (dataset / "manifest.json").is_file():
            parts.append((Kind.DATASET, dataset))
    if kind in (Kind.RUN, Kind.TRAINING):
        if (path / "drafter").is_dir():
            parts.append((Kind.DRAFTER, path / "drafter"))
        elif _had_drafter(kind, path):
            parts.append((kind, path))
    if not parts:
        raise ConfigError(f"{path}: {kind} with nothing to verify; give a dataset, a drafter, or a run that has them")
    return parts


def _had_drafter(kind: Kind, path: Path) -> bool:
    """Whether a drafter was made there: the folder says that it is finished, and was to come to the training."""
    if not (path / "DONE").is_file():
        return False
    if kind is Kind.TRAINING:
        return True
    config = config_of(path)
    until = config.get("until")
    trained = until in STAGES and STAGES.index(str(until)) >= STAGES.index("train")
    return trained and part(config, "evaluate").get("drafter") is None


def _dataset_faults(folder: Path, target: Path | None) -> Iterator[object]:
    from eagle3.data.manifest import NAME as MANIFEST
    from eagle3.data.targets import damaged_choices
    from eagle3.data.verify import verify
    from eagle3.target.info import read_info

    if target is not None:
        made_with = json_or_empty(folder / MANIFEST).get("target") or {}
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
    if (wrong := damaged_choices(folder)) is not None:
        yield wrong


def _bar(*columns: ProgressColumn) -> Progress:
    shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    return Progress(*shown, console=Console(file=sys.stderr), transient=True)


def _export_faults(folder: Path) -> Iterator[str]:
    from eagle3.data.exchange.checking import CHECKED, check_export, foreign, not_checked
    from eagle3.data.exchange.marker import EXPORT

    marker, faulty = json_or_empty(folder / EXPORT), False
    with _bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("files", total=None)
        for fault in check_export(folder, marker, lambda done, total: bar.update(task, completed=done, total=total)):
            faulty = True
            yield fault
    if not faulty:
        print(f"checked: {CHECKED}\nnot checked: {not_checked(marker)}")
        if note := foreign(folder, marker):
            print(f"{folder}: note: {note}")


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
    from eagle3.drafter.check import another_target, problems_of
    from eagle3.drafter.fields import FaultyDrafterError
    from eagle3.drafter.folder import read_drafter
    from eagle3.drafter.notes import notes_on

    try:
        files = read_drafter(folder)
    except FaultyDrafterError as error:
        yield from error.faults
        return
    info = read_target(folder, target)
    version = sglang_version or (None if files.own else installed_version())
    served_by = version or files.own.get("sglang_version")
    faults = another_target(files, info) + problems_of(files, info, boundaries, version)
    if files.layout == "sglang" and served_by is not None:
        faults += not_served(files.shape(), served_by)
    yield from faults
    if faults:
        return
    if files.layout == "sglang" and (unknown := unknown_version(served_by)):
        print(f"{folder}: note: {unknown}")
    for note in notes_on(files, info):
        print(f"{folder}: note: {note}")
