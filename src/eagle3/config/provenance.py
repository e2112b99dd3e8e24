"""Where a run came from: the code, the versions, the machine. Written into every run folder."""

import hashlib
import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from eagle3.config.load import PROJECT
from eagle3.config.secrets import redact

PACKAGES = ("sglang", "torch", "transformers", "lightning", "hydra-core", "omegaconf", "safetensors", "wandb", "eagle3")
_LONGEST_DIFF = 200_000
_CODE = ("run.py", "src/eagle3", "patches")
"""What runs: under the project's folder."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables by which a CPU's sums, and so the last bits of a result, change."""


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


def code_sha256() -> str:
    """One hash over the project's code as it is on the disk: tells two states apart that no commit tells."""
    digest = hashlib.sha256()
    for name in _CODE:
        root = PROJECT / name
        for path in sorted([root, *root.rglob("*")]):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(PROJECT).as_posix()}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def gpus() -> dict[str, Any]:
    """{"names": [...], "driver": version} of this machine; no names where there is none to use."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no module, no driver, no permission: each means that there is none to use
        return {"names": [], "driver": None}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        return {"names": names, "driver": _text(pynvml.nvmlSystemGetDriverVersion())}
    except pynvml.NVMLError as error:
        return {"names": [], "driver": f"does not answer: {error}"}
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cpu() -> str:
    """The processor's name; a CPU's sums depend on which instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    found = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor()


def provenance(argv: list[str]) -> dict[str, Any]:
    """Command, git state, versions and machine. Secrets that the environment holds are replaced by their names."""
    commit, diff = _git("rev-parse", "HEAD"), _git("diff", "HEAD")
    text = redact(diff) if diff else ""
    found = gpus()
    return {
        "command": redact(shlex.join(argv)),
        "git": {
            "commit": commit.strip() if commit else None,
            "dirty": bool(text),
            "diff": text[:_LONGEST_DIFF],
            "diff_cut": len(text) > _LONGEST_DIFF,
            "diff_sha256": hashlib.sha256(text.encode()).hexdigest() if text else None,
        },
        "code_sha256": code_sha256(),
        "python": sys.version.split()[0],
        "versions": versions(),
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "cpu": _cpu(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpus": found["names"],
            "driver": found["driver"],
        },
        "threads": {name: os.environ.get(name) for name in _THREADS},
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
