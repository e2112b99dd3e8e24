"""SGLang's source, version by version: wheels without their dependencies, kept in the user's cache."""

import fcntl
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

from eagle3.target import cache_folder

_PLATFORM = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--platform=manylinux_2_34_x86_64")
"""Always the same wheel, whatever machine reads it."""


class UnreachableError(Exception):
    """The wheel is not in the cache, and no package index can be reached."""


def unpack(version: str, folder: Path) -> Path:
    """Puts `sglang/` and its metadata into `folder`, as far as they are Python; gives `folder/sglang`.

    Raises:
        UnreachableError: see there; says what to do.
    """
    if _installed() == version:
        spec = importlib.util.find_spec("sglang")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        source = Path(spec.submodule_search_locations[0])
        wanted = [path for path in source.rglob("*.py") if _is_wanted(path.relative_to(source.parent).as_posix())]
        for path in wanted:
            copy = folder / path.relative_to(source.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        metadata = folder / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        return folder / "sglang"
    with zipfile.ZipFile(_wheel(version)) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if _is_wanted(name)])
    return folder / "sglang"


def _installed() -> str | None:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    if path.name == "METADATA":
        return True
    return path.suffix == ".py" and (len(path.parts) == 2 or path.parts[:2] == ("sglang", "srt"))


def _wheel(version: str) -> Path:
    folder = cache_folder(None) / "sglang" / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two workers one downloads
        found = list(folder.glob("*.whl"))
        return found[0] if found else _download(version, folder)


def _download(version: str, folder: Path) -> Path:
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *_PLATFORM]
    pip += ["--only-binary=:all:", "--retries=1", "--timeout=20", "--dest", str(partial), f"sglang=={version}"]
    done = subprocess.run(pip, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        if "from versions: none" in done.stderr:
            raise UnreachableError(
                f"the wheel of SGLang {version} is not in {folder}, and pip reaches no index that has it; "
                "run this once with a network"
            )
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"pip could not download sglang=={version}: {' | '.join(said[-3:])}")
    (wheel,) = partial.glob("*.whl")
    kept = wheel.rename(folder / wheel.name)
    partial.rmdir()
    return kept
