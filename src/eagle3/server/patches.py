"""Where the folders are that go in front of SGLang, and what they contain."""

import hashlib
from pathlib import Path

from eagle3.errors import ServerError

PATCHES = Path(__file__).resolve().parents[3] / "patches"


def patch_folder(name: str) -> Path:
    """`hs_dump` or `cpu_kernels`; to be put on the server's PYTHONPATH."""
    folder = PATCHES / name
    if not folder.is_dir():
        raise ServerError(f"{folder} is missing: run from a checkout of the project, which holds patches/")
    return folder


def plugin_sha256() -> str:
    """Hash over the names and contents of the dump plugin's files; part of a dataset's provenance."""
    folder = patch_folder("hs_dump")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
