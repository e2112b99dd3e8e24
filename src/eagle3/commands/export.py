"""`eagle3 export PATH`: a drafter for a named SGLang version, or in speculators' layout, with a model card."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from eagle3.commands.card import Card, write_card
from eagle3.commands.drafters import (
    installed_version,
    read_target,
    serve_command,
    sglang_version_of,
    unknown_version,
)
from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import config_of, part
from eagle3.config.origin import FILES, read_origin, write_origin
from eagle3.errors import EXIT_DONE, ConfigError, Eagle3Error
from eagle3.files.disk import disk_error
from eagle3.files.json_file import json_or_empty
from eagle3.files.whole import PARTIAL, WRITING
from eagle3.target.info import TargetInfo


@dataclass(frozen=True)
class _Export:
    """What is to be written, all of it checked."""

    folder: Path
    out: Path
    form: str
    target: TargetInfo
    version: str
    """Of SGLang, that will serve it."""
    read_by: str | None
    """Of SGLang, by which the capture ids of others' drafters are read."""
    boundaries: list[int] | None
    verifier: str


def run_export_drafter(
    path: Path,
    out: Path | None,
    form: str,
    sglang_version: str | None = None,
    target: Path | None = None,
    boundaries: list[int] | None = None,
    verifier: str | None = None,
) -> int:
    """Writes the folder, reads it back strictly, and prints how it is served. What made the drafter goes with it.

    Args:
        path: a run, a training, or a drafter's folder, also one that someone else made.
        out: a new or empty folder, or an earlier export; by default beside the drafter.
        form: sglang or speculators.
        boundaries: what a drafter of others was trained on: they replace what its config.json says.
        verifier: what the target is called where the drafter will be served.

    Raises:
        ConfigError: the path has no drafter, the target isn't known, `out` holds something else, or the drafter can't
            be expressed so.
        Eagle3Error: the drafter is faulty or another target's, or the result can't be written.
    """
    from eagle3.drafter.check import check_drafter

    if form == "speculators" and sglang_version is not None:
        raise ConfigError("--sglang-version: has no meaning for --format speculators; leave it out")
    named = sglang_version_of(sglang_version)
    folder = _drafter_of(path)
    info = read_target(folder, target)
    version, read_by = _require_sound(folder, info, form, named, boundaries)
    out = out or folder.parent / (f"drafter-sglang-{version}" if form == "sglang" else "drafter-speculators")
    _require_free(out, folder)
    export = _Export(folder, out, form, info, version, read_by, boundaries, verifier or _name_of(info))
    if form == "sglang" and (unknown := unknown_version(version)):
        print(f"note: {unknown}", file=sys.stderr)
    trained_on = _write(export)
    if again := check_drafter(out, info, trained_on):
        raise Eagle3Error(f"{out}: {'; '.join(again)}")
    made_for = f"SGLang {version}" if form == "sglang" else "vLLM (speculators 0.9)"
    steps = min(3, _draft_tokens(folder))
    command = serve_command(form, export.verifier, out.name, steps)
    write_card(out, Card(folder, info, export.verifier, trained_on, made_for, command))
    print(f"{out}: for {made_for}, boundaries {trained_on}; checked")
    print(serve_command(form, export.verifier, str(out), steps))
    return EXIT_DONE


def _require_sound(
    folder: Path, target: TargetInfo, form: str, named: str | None, boundaries: list[int] | None
) -> tuple[str, str | None]:
    """(the SGLang that will serve it, the one that the capture ids of others are read by). Says what looks odd."""
    from eagle3.drafter.check import another_target, problems_of
    from eagle3.drafter.folder import read_drafter
    from eagle3.drafter.notes import notes_on

    files = read_drafter(folder)
    if files.own and boundaries not in (None, files.own["boundaries"]):
        raise ConfigError(f"--boundaries: {folder} says itself that it was trained on {files.own['boundaries']}")
    read_by = None if files.own else installed_version()
    problems = another_target(files, target)
    problems += problems_of(files, target, boundaries, read_by, corrected=boundaries is not None)
    if problems:
        raise Eagle3Error(f"{folder}: {'; '.join(problems)}")
    for note in notes_on(files, target, written_as=form):
        print(f"{folder}: note: {note}", file=sys.stderr)
    return named or files.own.get("sglang_version") or installed_version(), read_by


def _require_free(out: Path, folder: Path) -> None:
    """Only what an export wrote is written over: a training's drafter, a run or a model is somebody's work."""
    if out.resolve() == folder.resolve():
        raise ConfigError(f"{out}: is the drafter itself; give another folder")
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise ConfigError(f"{out}: is no folder; give a new one")
    if part(json_or_empty(out / "config.json"), "eagle3").get("by") == "export":
        return
    if left := sorted(path.name for path in out.iterdir() if path.suffix not in (WRITING, PARTIAL)):
        raise ConfigError(
            f"{out}: holds {', '.join(left[:3])}{', ...' if len(left) > 3 else ''} and is no earlier export. Give a "
            "new folder, or empty this one"
        )


def _write(export: _Export) -> list[int]:
    from eagle3.drafter.capture import not_served
    from eagle3.drafter.export import export_drafter
    from eagle3.drafter.load import load_drafter
    from eagle3.drafter.speculators import export_speculators

    loaded = load_drafter(export.folder, export.target, export.read_by, export.boundaries)
    drafter, ids, boundaries = loaded.drafter, loaded.draft_ids, loaded.boundaries
    if export.form == "sglang":
        if lacking := not_served(drafter.shape, export.version):
            raise ConfigError(f"--sglang-version {export.version}: {'; '.join(lacking)}")
        args = (export.target, export.out, export.version, loaded.embedding)
        export_drafter(drafter, ids, boundaries, *args, by="export")
    else:
        steps = _draft_tokens(export.folder)
        export_speculators(drafter, ids, boundaries, export.target, export.out, export.verifier, steps)
    origin = read_origin(export.folder) or read_origin(export.folder.absolute().parent)
    try:
        for name in FILES:
            if name not in origin:  # of an earlier export there, which something else made
                (export.out / name).unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(error, export.out) from error
    write_origin(origin, export.out)
    return boundaries


def _draft_tokens(folder: Path) -> int:
    """As many as it was trained for, 3 where that is not known."""
    config = config_of(folder.absolute().parent) or config_of(folder)
    steps = part(config, "loss").get("ttt_steps")
    return steps if isinstance(steps, int) and steps > 0 else 3


def _drafter_of(path: Path) -> Path:
    kind = kind_of(path)
    if kind in (Kind.DRAFTER, Kind.DAMAGED):  # what is damaged says whoever reads it
        return path
    if kind not in (Kind.RUN, Kind.TRAINING) or not (path / "drafter").is_dir():
        raise ConfigError(f"{path}: {kind} without a drafter; give a run, a training or a drafter's folder")
    return path / "drafter"


def _name_of(info: TargetInfo) -> str:
    if info.source.startswith("hub:"):
        return info.source.removeprefix("hub:").partition("@")[0]
    return str(info.path)
