"""Where the folders are that go in front of SGLang, and what they contain."""

import ast
import hashlib
import re
from dataclasses import dataclass
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


@dataclass(frozen=True)
class DumpVersions:
    """SGLang versions that the dump plugin was made for. A post-release counts as its release."""

    oldest: str
    newest: str
    plugins_since: str
    """The first that loads plugins by itself; an older one is started by the plugin's own `launch` module."""

    def hold(self, version: str) -> bool:
        return _numbers(self.oldest) <= _numbers(version) <= _numbers(self.newest)

    def loads_plugins(self, version: str) -> bool:
        return _numbers(version) >= _numbers(self.plugins_since)


def dump_versions() -> DumpVersions:
    """Read from the plugin's source: it is made for the server's environment, which may be another than this one."""
    source = patch_folder("hs_dump") / "eagle3_hs_dump" / "__init__.py"
    found: dict[str, str] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            names = [name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)]
            values = [text.value for text in ast.walk(node.value) if isinstance(text, ast.Constant)]
            found |= {name.lower(): str(value) for name, value in zip(names, values, strict=False)}
    try:
        return DumpVersions(found["oldest"], found["newest"], found["plugins_since"])
    except KeyError as error:
        raise ServerError(f"{source}: does not say which SGLang it is for; restore it from the repository") from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
