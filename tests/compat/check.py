"""Holds the source of an SGLang version against what the plugin and the server's flags rely on. Imports none of it."""

import ast
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tests.compat.symbols import ARGUMENTS, SYMBOLS, Symbol

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, TargetConfig
from eagle3.errors import Eagle3Error
from eagle3.server.arguments import installed
from eagle3.server.flags import ServerCommand, server_command
from eagle3.server.required import REFUSED

_SPREADS_ROWS = re.compile(
    r"(^|_)(pp|cp|dcp|pipeline_parallel|context_parallel)_size$|^enable_\w*(context_parallel|prefill_cp|two_batch_overlap"
    r"|layernorm_sp)$|allreduce_fusion(_backend)?$|^(enable|enforce)_\w*_cuda_graph$|^cuda_graph_config$"
)
"""Names of flags that would break a dump: each must be refused, or be one of those below."""
_HARMLESS = {
    "enforce_disable_flashinfer_allreduce_fusion",  # set by us
    "enable_megamoe_for_layernorm_sp",  # means something only with enable_layernorm_sp
    "enable_profile_cuda_graph",  # profiles the capture of graphs, if any
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def problems(version: str, folder: Path) -> list[str]:
    """What does not fit, a line each; empty when all does.

    Args:
        folder: `sglang/`, its metadata beside it.
    """
    found = [text for row in SYMBOLS if row.holds_for(version) for text in check_symbol(row, folder)]
    fields = _argument_fields(folder)
    found += [
        f"ServerArgs has no field {row.name}" for row in ARGUMENTS if row.holds_for(version) and row.name not in fields
    ]
    return found + _check_flags(folder)


def check_symbol(row: Symbol, folder: Path) -> list[str]:
    """What does not fit of one row."""
    path = folder / row.file
    if not path.is_file():
        return [f"{row.file} is not there"]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    where = f"{row.file}: {row.name}" if row.name else row.file
    node = _find(tree, row.name)
    if node is None:
        return [f"{where} is not there"]
    found = []
    if row.parameters:
        taken = _parameters(node)
        if tuple(taken[: len(row.parameters)]) != row.parameters:
            found.append(f"{where} takes ({', '.join(taken)}), not ({', '.join(row.parameters)}, ...)")
    there = _members(node)
    found += [f"{where} has no {name}" for name in row.members if name not in there]
    mentioned = _mentioned(tree) if row.uses else set()
    return found + [f"{where} does not use {name}" for name in row.uses if name not in mentioned]


def _find(tree: ast.Module, name: str) -> ast.AST | None:
    node: ast.AST | None = tree
    for part in name.split(".") if name else ():
        body = getattr(node, "body", [])
        node = next(
            (item for item in body if isinstance(item, (ast.ClassDef, *_FUNCTIONS)) and item.name == part), None
        )
    return node


def _parameters(node: ast.AST) -> list[str]:
    return [argument.arg for argument in node.args.args] if isinstance(node, _FUNCTIONS) else []


def _members(node: ast.AST) -> set[str]:
    names = set()
    for item in getattr(node, "body", []):
        if isinstance(item, (ast.ClassDef, *_FUNCTIONS)):
            names.add(item.name)
        names |= {target.id for target in _targets(item) if isinstance(target, ast.Name)}
    if isinstance(node, ast.ClassDef):
        for item in ast.walk(node):
            for target in _targets(item):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    names.add(target.attr)
    return names


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for target in node.targets for part in getattr(target, "elts", [target])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _mentioned(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _argument_fields(folder: Path) -> set[str]:
    srt = folder / "srt"
    names = set()
    for path in (srt / "server_args.py", *(srt / "arg_groups").glob("fields/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names |= {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
    return names


def _check_flags(folder: Path) -> list[str]:
    try:
        for device in ("cpu", "cuda"):
            command_of(folder, device, "extraction")
            command_of(folder, device, "serving")
        flags = installed(str(interpreter(folder))).flags
    except Eagle3Error as error:
        return [str(error)]
    unheard = {name for name in flags if _SPREADS_ROWS.search(name)} - set(REFUSED) - _HARMLESS
    return [f"the flag {name} is not refused, nor known to be harmless" for name in sorted(unheard)]


def command_of(
    folder: Path,
    device: str,
    role: Literal["extraction", "serving"],
    flags: Mapping[str, object] | None = None,
    *,
    allow_untested: bool = False,
) -> ServerCommand:
    """The command for the SGLang of `folder`, as a user with its interpreter in `server.python` gets it."""
    server = ServerConfig(device=device, python=str(interpreter(folder)), allow_untested=allow_untested)
    server.flags.common = dict(flags or {})
    cfg = Config(
        name="compat",
        target=TargetConfig(name="t", path="some/model"),
        dataset=DatasetConfig(name="d", path="d.jsonl"),
        server=server,
    )
    return server_command(cfg, role, "M", dump=Path("/data/work") if role == "extraction" else None)


def interpreter(folder: Path) -> Path:
    """One that finds the SGLang of `folder` as if it were installed."""
    path = folder.parent / "python"
    if not path.exists():
        path.write_text(f"#!/bin/sh\nPYTHONPATH='{folder.parent}' exec '{sys.executable}' \"$@\"\n", encoding="utf-8")
        path.chmod(0o755)
    return path
