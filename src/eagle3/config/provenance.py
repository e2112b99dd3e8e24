"""Where a run came from: the code, the versions, the machine. Written into every run folder."""

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from eagle3.config.load import PROJECT
from eagle3.config.secrets import redact

PACKAGES = ("sglang", "torch", "transformers", "lightning", "hydra-core", "omegaconf", "safetensors", "wandb", "eagle3")
_LONGEST_DIFF = 200_000


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(PROJECT), *arguments], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def versions() -> dict[str, str | None]:
    """Installed versions of the packages that a result depends on; None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def provenance(argv: list[str]) -> dict[str, Any]:
    """Command, git state, versions and machine. Secrets that the environment holds are replaced by their names."""
    commit, diff = _git("rev-parse", "HEAD"), _git("diff", "HEAD")
    text = redact(diff) if diff else ""
    return {
        "command": redact(" ".join(argv)),
        "git": {
            "commit": commit.strip() if commit else None,
            "dirty": bool(text),
            "diff": text[:_LONGEST_DIFF],
            "diff_cut": len(text) > _LONGEST_DIFF,
        },
        "python": sys.version.split()[0],
        "versions": versions(),
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        },
        "nccl_env": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
    }


def file_sha256(paths: list[Path]) -> str:
    """One hash over the names and contents of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
