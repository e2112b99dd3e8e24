"""Other trainers, each in a folder of its own: the dependencies are this environment's, their code stays out of it."""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3.target import cache_folder

BESIDE = {
    "speculators==0.9.0": ("hs-connectors==0.9.0",),
    "hydra-submitit-launcher==1.2.0": ("submitit==1.5.4",),
}
"""Packages that a peer imports and this environment lacks."""


def peer_path(name: str, version: str) -> Path:
    """Folder to put on sys.path for `name==version`, installed without dependencies, once, in the user's cache.

    Skips the calling test where the package index cannot be reached; fails where it can and the install does not work.
    """
    folder = cache_folder(None) / "peers" / f"{name}-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers one installs
        if not folder.is_dir():
            wanted = f"{name}=={version}"
            _install([wanted, *BESIDE.get(wanted, ())], folder)
    return folder


def _install(requirements: list[str], folder: Path) -> None:
    work = folder.with_name(folder.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--no-compile", "--only-binary=:all:", "--retries=1", "--timeout=20", "--target", str(work)]
    done = subprocess.run([*pip, *requirements], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        work.rename(folder)
        return
    shutil.rmtree(work, ignore_errors=True)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    if "from versions: none" in done.stderr:
        pytest.skip(f"{requirements[0]} is not in {folder}, and pip reaches no index that has it")
    pytest.fail(f"pip could not install {' '.join(requirements)}: {' | '.join(said[-3:])}")
