"""The drafter that a job names, read as strictly as a server should."""

from pathlib import Path
from typing import Any

from eagle3.drafter.check import problems_of
from eagle3.drafter.check_boundaries import captures
from eagle3.drafter.folder import read_drafter
from eagle3.drafter.load import LoadedDrafter, load_drafter
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.server.arguments import installed
from eagle3.target.info import TargetInfo
from eagle3.training.job import Job


def open_drafter(job: Job, boundaries: list[int]) -> LoadedDrafter:
    """Ours or of others.

    Args:
        boundaries: of the states that it will be given.

    Raises:
        Eagle3Error: it is faulty, or was trained on other boundaries.
    """
    if job.drafter is None:
        raise ConfigError("The job names no drafter to evaluate.")
    loaded = checked(job.drafter, job.target, job.config.server.python, job.config.layers.boundaries)
    require_boundaries(job.drafter, loaded, boundaries)
    return loaded


def require_boundaries(folder: Path, loaded: LoadedDrafter, boundaries: list[int]) -> None:
    """Raises Eagle3Error where the drafter was trained on others."""
    if loaded.boundaries != boundaries:
        raise Eagle3Error(
            f"{folder} was trained on boundaries {loaded.boundaries}, and is to be evaluated on "
            f"{boundaries}: acceptance would mean nothing. Set layers.boundaries={loaded.boundaries}."
        )


def _require_target(folder: Path, own: dict[str, Any], target: TargetInfo) -> None:
    """Ours say whose they are. Raises Eagle3Error for those of another."""
    whose = own.get("target")
    if isinstance(whose, dict) and whose.get("fingerprint") not in (None, target.fingerprint):
        raise Eagle3Error(
            f"{folder} was trained for another model ({whose.get('name')}) than {target.path}, or its weights or "
            "config.json have changed since. To measure it all the same, take eagle3.target.fingerprint out of the "
            "drafter's config.json."
        )


def checked(folder: Path, target: TargetInfo, python: str | None, named: list[int] | None = None) -> LoadedDrafter:
    """A drafter's folder without a fault, for this target. Raises Eagle3Error naming those there are.

    Args:
        python: interpreter of the SGLang by which the capture ids of others are read; null is this one.
        named: `layers.boundaries`, where the configuration names them: if the capture ids of others are read as these,
            that they were trained on them was said. (Of another choice nothing is known: it may be an experiment's.)
    """
    files = read_drafter(folder)
    own = files.own
    version = None if own else installed(python).version
    _require_target(folder, own, target)
    said = named if version is not None and captures(files, target, named, version) else None
    problems = problems_of(files, target, said, version)
    if problems:
        remedy = (
            "Export or fetch it again" if own else "Fetch it again, or mend what is named (docs/serving.md, Verify)"
        )
        raise Eagle3Error(f"{folder}: {'; '.join(problems)}. {remedy}.")
    return load_drafter(folder, target, version)
