"""Which command-line flags the installed SGLang takes, read from its source: importing it would cost ten seconds."""

import ast
import functools
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eagle3.errors import ServerError

_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")
_NUMBERS = frozenset(form.format(kind) for kind in ("int", "float") for form in ("{}", "Optional[{}]", "{} | None"))
_PROBE = (
    "import importlib.util as u, importlib.metadata as m, json; s = u.find_spec('sglang'); "
    "print(json.dumps([list(s.submodule_search_locations), m.version('sglang')] if s else None))"
)


@dataclass(frozen=True)
class Installed:
    """The SGLang of one Python environment."""

    version: str
    flags: frozenset[str]
    """Long names without dashes in front and with underscores: `mem_fraction_static`."""
    numbers: frozenset[str] = frozenset()
    """Those of them that are declared as a whole number or a real one."""

    def takes(self, flag: str) -> bool:
        return flag in self.flags


@functools.lru_cache(maxsize=8)
def installed(python: str | None) -> Installed:
    """Looks into the environment of interpreter `python`, or this one; needs no GPU and starts no server."""
    folder, version = _locate(python)
    names: set[str] = set()
    numbers: set[str] = set()
    others: set[str] = set()
    srt = folder / "srt"
    sources = [srt / "server_args.py", *sorted((srt / "arg_groups").glob("fields/*.py"))]
    for source in sources:
        if source.exists():
            tree = ast.parse(source.read_text(encoding="utf-8"))
            names |= _flags(tree)
            for name, annotation in _fields(tree):
                (numbers if _is_number(annotation) else others).add(name)
    if not names:
        raise ServerError(f"no command-line flags found in {srt}: is SGLang {version} installed whole?")
    return Installed(version, frozenset(names), frozenset(names & numbers - others))


def _locate(python: str | None) -> tuple[Path, str]:
    if python is None or Path(python) == Path(sys.executable):
        spec = importlib.util.find_spec("sglang")
        found = [list(spec.submodule_search_locations or []), importlib.metadata.version("sglang")] if spec else None
    else:
        try:
            text = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerError(f"server.python={python} does not run: {error}") from error
        found = json.loads(text)
    if not found:
        where = python or sys.executable
        raise ServerError(f"SGLang is not installed for {where}: install it, or name its interpreter in server.python")
    return Path(found[0][0]), found[1]


def _flags(tree: ast.Module) -> set[str]:
    """Fields of records (newer versions make flags of them) and spelled-out `--flags` (older ones, aliases)."""
    names = {flag for name, annotation in _fields(tree) for flag in _field(name, annotation)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FLAG.fullmatch(node.value):
            names.add(node.value[2:].replace("-", "_"))
    return names


def _fields(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Name and annotation of each field of each record."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, item.annotation


def _is_number(annotation: ast.expr) -> bool:
    """Whether it is one of _NUMBERS, or what newer versions write for it: `A[int, ...]`."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A":
        annotation = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
    return ast.unparse(annotation) in _NUMBERS


def _field(name: str, annotation: ast.expr) -> set[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.keyword) and node.arg == "no_cli":
            return set()
        if isinstance(node, ast.Attribute) and node.attr == "BooleanOptionalAction":
            return {name, f"no_{name}"}
    return {name}
