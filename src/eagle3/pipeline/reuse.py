"""Whether what a stage has left can be taken as it is."""

import functools
from pathlib import Path

from eagle3.config import Config
from eagle3.drafter.fields import OWN, weights_sha256
from eagle3.errors import DataError
from eagle3.evaluation.figures import FAILED
from eagle3.files.json_file import json_or_empty, read_json
from eagle3.metrics import Reporter
from eagle3.pipeline.artifacts import Artifact
from eagle3.pipeline.imported import is_imported, require_whole
from eagle3.pipeline.stages import dataset_content
from eagle3.target.info import TargetInfo

LEFT = {
    "train": ("summary.json", "drafter/config.json", "drafter/model.safetensors"),
    "evaluate": ("summary.json",),
}
"""What later stages and the report read of these. A training's checkpoints may be removed once it is done."""


def as_left(artifact: Artifact, cfg: Config, target: TargetInfo, reporter: Reporter) -> str | None:
    """None for an artifact that is done and as it was left; else why it can't be taken as it is.

    Raises:
        DataError: it was imported, and is damaged: nothing here could make it again.
    """
    if not artifact.done:
        return f"{artifact.folder} is not done"
    if artifact.stage == "prepare" and not is_imported(cfg):
        from eagle3.data.prompts_file import changed

        return changed(artifact.folder)
    if artifact.stage in LEFT:
        gone = [name for name in LEFT[artifact.stage] if not (artifact.folder / name).is_file()]
        if gone:
            return f"{artifact.folder / gone[0]} is gone"
        if artifact.stage == "train" and _altered(artifact.folder / "drafter"):
            return f"{artifact.folder / 'drafter'} is not what was exported"
        failed = read_json(artifact.folder / "summary.json").get(FAILED)
        return f"{artifact.folder}: {failed} could not be measured then" if failed else None
    if artifact.stage != "extract":
        return None
    if is_imported(cfg):
        require_whole(artifact, target, reporter)
        return None
    from eagle3.data.checked import untouched

    return untouched(artifact.folder, target.fingerprint)


def _altered(drafter: Path) -> bool:
    """Whether the weights are others than were exported. A run's folder has them by a hard link: what is written into
    that file is written here."""
    wanted = (json_or_empty(drafter / "config.json").get(OWN) or {}).get("weights_sha256")
    weights = drafter / "model.safetensors"
    told = weights.stat()
    return wanted != _sha256(weights, told.st_size, told.st_mtime_ns)


@functools.cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Of the content, once for each that a file is seen to have: gigabytes of it, of a large drafter."""
    return weights_sha256(path)


def require_same_content(cfg: Config, artifact: Artifact) -> None:
    """After prepare: its name says what it was made of. Raises DataError where that was changed meanwhile."""
    if dataset_content(cfg) != artifact.inputs["content"]:
        raise DataError(f"dataset.path: {cfg.dataset.path} was changed while it was read; run the command again")
