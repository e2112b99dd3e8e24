"""What a run leaves in W&B beside figures: dataset, drafter and report as artifacts that name one another."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def placed_under(run_dir: Path) -> Iterator[None]:
    """For as long as this lasts, W&B is silent, and its caches and logs go to run_dir/wandb, not to the home folder."""
    wanted = {
        "WANDB_CACHE_DIR": str(run_dir / "wandb" / "cache"),
        "WANDB_DATA_DIR": str(run_dir / "wandb" / "data"),
        "WANDB_SILENT": "true",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def dataset_artifact(folder: Path) -> Any:
    """The manifest as an artifact; its metadata say where the shards are and what they hold."""
    import wandb

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    target = manifest.get("target", {})
    kept = ("boundaries", "dtype", "hidden_size", "sequences", "tokens", "bytes", "complete", "sglang_version")
    metadata = {name: manifest.get(name) for name in kept}
    metadata |= {"folder": str(folder), "target": target, "prompts_fingerprint": manifest.get("prompts_fingerprint")}
    name = f"dataset-{_safe(target.get('name', 'target'))}-{_safe(str(manifest.get('prompts_fingerprint', '')))[:12]}"
    artifact = wandb.Artifact(name.rstrip("-"), type="dataset", metadata=metadata)
    # "immutable" takes the file where it is: nothing is copied into W&B's own folders.
    artifact.add_file(str(folder / "manifest.json"), policy="immutable", skip_cache=True)
    return artifact


def drafter_artifact(folder: Path, target: str, metadata: dict[str, Any]) -> Any:
    """A drafter's folder, with what made it, as an artifact of type model."""
    return folder_artifact(folder, f"drafter-{target}", "model", metadata)


def folder_artifact(
    folder: Path, name: str, type_: str, metadata: dict[str, Any], skipped: tuple[str, ...] = ()
) -> Any:
    """A folder as an artifact, file by file (`add_dir` talks to the terminal)."""
    import wandb

    artifact = wandb.Artifact(_safe(name), type=type_, metadata={"folder": str(folder), **metadata})
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_file() and relative not in skipped:
            artifact.add_file(str(path), name=relative, policy="immutable", skip_cache=True)
    return artifact


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
