"""How a run or a stage stands that is not finished: being made now, stopped, or finished by another run since."""

from pathlib import Path

from eagle3.commands.origin import artifacts_of, config_of
from eagle3.errors import Eagle3Error
from eagle3.files.json_file import json_or_empty
from eagle3.pipeline.artifacts import DONE, LOCK, is_locked
from eagle3.pipeline.sweep_table import JOB_RECORD

LAST = {"report": "evaluate"}
"""A report is no artifact: what it is about is made by then."""


def stage_state(folder: Path) -> str:
    """Of a stage's folder under artifacts/."""
    if (folder / DONE).exists():
        return "finished"
    if by := _maker(folder):
        return f"being made now ({by})"
    return "not finished: the same command continues it"


def run_state(run: Path, failed: bool) -> str:
    """Of a run's folder, and what became of its stages since. They are shared: the same command goes on with them in a
    folder of its own, and this one stays as it was left.
    """
    if (run / DONE).exists():
        return "finished"
    artifacts = artifacts_of(run)
    busy = next(((stage, by) for stage, folder in artifacts.items() if (by := _maker(folder))), None)
    last = _last(run, artifacts)
    other = None if last is None else _finished_by(run, last)
    of_a_sweep = "overrides" in json_or_empty(run / JOB_RECORD)
    if of_a_sweep and is_held(run):
        return "being run now, by its sweep"
    if busy is not None:
        return f"{'failed; since then ' if failed else ''}{busy[0]} is being made now ({busy[1]})"
    if other is not None:
        return f"{'failed' if failed else 'stopped'} here; {other} has finished what it was to make"
    if of_a_sweep:
        return f"{'failed' if failed else 'not finished'}: its sweep's command runs it again, in this folder"
    if failed:
        return "failed"
    if last is not None and (last / DONE).exists():
        return "not finished: its stages are, and the same command writes their report, into a run folder of its own"
    return "not finished: the same command continues it, in a run folder of its own"


def _last(run: Path, artifacts: dict[str, Path]) -> Path | None:
    """What the run was to make last; None where it was stopped before that was known."""
    try:
        until = str(config_of(run).get("until", "report"))
    except Eagle3Error:
        return None
    return artifacts.get(LAST.get(until, until))


def _finished_by(run: Path, last: Path) -> Path | None:
    """The run beside it that has finished the same."""
    for beside in sorted(run.absolute().parent.iterdir(), reverse=True):
        artifacts = artifacts_of(beside)
        if (beside / DONE).is_file() and last in artifacts.values() and _last(beside, artifacts) == last:
            return run.parent / beside.name
    return None


def is_held(folder: Path) -> bool:
    """Whether a process is making the folder, as far as can be told."""
    try:
        return is_locked(folder)
    except (OSError, Eagle3Error):  # a copy that can't be written, or a disk without locks
        return False


def _maker(folder: Path) -> str:
    """Who holds the folder; empty where nobody does."""
    if not is_held(folder):
        return ""
    try:
        return (folder / LOCK).read_text(encoding="utf-8").strip() or "by another process"
    except (OSError, ValueError):
        return "by another process"
