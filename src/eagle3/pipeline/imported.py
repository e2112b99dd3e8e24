"""A dataset of hidden states that was imported: it takes the place of what prepare and extract would have made."""

from contextlib import suppress
from pathlib import Path

from eagle3.config import Config
from eagle3.config.provenance import file_sha256
from eagle3.data.manifest import NAME as MANIFEST
from eagle3.data.manifest import Manifest
from eagle3.errors import ConfigError, DataError
from eagle3.metrics import Reporter
from eagle3.pipeline.artifacts import DONE, Artifact
from eagle3.target.info import TargetInfo


def is_imported(cfg: Config) -> bool:
    """Whether `dataset.path` is a dataset of hidden states, not of conversations."""
    return (Path(cfg.dataset.path) / MANIFEST).is_file()


def imported(cfg: Config, target: TargetInfo, boundaries: list[int]) -> tuple[Artifact, Artifact]:
    """Both stages' artifacts, of a folder for which `is_imported` is true.

    Raises:
        ConfigError: the import is not finished, of another target, or lacks a boundary.
        DataError: its manifest is none.
    """
    folder = Path(cfg.dataset.path)
    if not (folder / "prompts.safetensors").is_file():
        raise ConfigError(
            f"dataset.path: {folder} is a dataset of hidden states without its prompts; give the conversations that it "
            "was made of, or a folder that `eagle3 import-data` made"
        )
    if not (folder / DONE).is_file():
        raise ConfigError(f"dataset.path: the import into {folder} is not finished; the same command continues it")
    manifest = Manifest.load(folder)
    if manifest.target.get("fingerprint") != target.fingerprint:
        raise ConfigError(
            f"dataset.path: {folder} was made with {manifest.target.get('name')}, another model than {target.path}"
        )
    missing = sorted(set(boundaries) - set(manifest.boundaries))
    if missing:
        raise ConfigError(
            f"dataset.path: {folder} has boundaries {manifest.boundaries}, not {missing}; choose layers.boundaries "
            "among them"
        )
    inputs = {"imported": file_sha256([folder / MANIFEST])}
    extract = Artifact("extract", folder, {**inputs, "capture": manifest.boundaries})
    return Artifact("prepare", folder, inputs), extract


def require_whole(artifact: Artifact, target: TargetInfo, reporter: Reporter) -> None:
    """Reads an imported dataset again when a shard was touched, copied with the folder for example, since it was known
    to be right. Nothing in the folder is changed but the note of that.

    Raises:
        DataError: something is wrong with it.
    """
    from eagle3.data.checked import Checked, untouched
    from eagle3.data.verify import verify

    changed = untouched(artifact.folder, target.fingerprint)
    if changed is None:
        return
    reporter.note(f"{changed}: they are read again")
    for fault in verify(artifact.folder, lambda done, total: reporter.progress(done, total, unit="bytes")):
        raise DataError(
            f"dataset.path: {artifact.folder}: {fault}. The `eagle3 import-data` that made it, run again, mends it"
        )
    with suppress(OSError):  # in a folder that is read-only it is read again the next time
        Checked(artifact.folder).add(shard.file for shard in Manifest.load(artifact.folder).shards)
