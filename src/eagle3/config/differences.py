"""What differs between two provenances: of a run, and of the machine and code that are to repeat it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SHORT = 12
"""Letters of a hash that are shown."""


@dataclass(frozen=True)
class Difference:
    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.then} -> {self.now}"


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Those of what both provenances say; what one of them does not know yet (or never noted) is left out."""
    before, after = dict(_facts(then)), dict(_facts(now))
    for name in before | after:
        if name.startswith("NCCL_"):
            before.setdefault(name, "not set")
            after.setdefault(name, "not set")
    return [
        Difference(name, value, after[name]) for name, value in before.items() if name in after and after[name] != value
    ]


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of a configuration's leaves; a list is a leaf."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def config_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Keys of two resolved configurations whose values differ; `replay` and `sweep` change no result."""
    before, after = dict(flat(then)), dict(flat(now))
    keys = [key for key in dict.fromkeys([*before, *after]) if not key.startswith(("replay.", "sweep."))]
    missing = "(no such key)"
    return [
        Difference(key, str(before.get(key, missing)), str(after.get(key, missing)))
        for key in keys
        if before.get(key, missing) != after.get(key, missing)
    ]


def _facts(made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what, its value as text); hashes shortened."""
    git = made.get("git") or {}
    if git.get("commit"):
        yield "git commit", git["commit"][:_SHORT]
        if not git.get("dirty") or git.get("diff_sha256"):
            yield "local changes", f"sha256 {git['diff_sha256'][:_SHORT]}" if git.get("dirty") else "none"
    if made.get("code_sha256"):
        yield "code", f"sha256 {made['code_sha256'][:_SHORT]}"
    if made.get("python"):
        yield "Python", str(made["python"])
    for name, version in (made.get("versions") or {}).items():
        yield name, str(version or "not installed")
    if made.get("plugin_sha256"):
        yield "dump plugin", f"sha256 {made['plugin_sha256'][:_SHORT]}"
    machine = made.get("machine") or {}
    if "gpus" in machine:
        yield "GPU", ", ".join(machine["gpus"]) or "none"
        yield "GPU driver", str(machine.get("driver") or "none")
    for key, name in (("cpu", "CPU"), ("cpus", "CPU cores")):
        if key in machine:
            yield name, str(machine[key])
    for group in ("threads", "nccl_env"):
        for name, value in (made.get(group) or {}).items():
            yield name, str(value if value is not None else "not set")
    for key, name in (("target", "target"), ("dataset", "dataset")):
        if fingerprint := (made.get(key) or {}).get("fingerprint"):
            yield name, f"{made[key].get('name')} {fingerprint[:_SHORT]}"
    if tokenizer := (made.get("dataset") or {}).get("tokenizer"):
        yield "tokenizer", f"sha256 {tokenizer[:_SHORT]}"
    for name, known_by in (made.get("evaluated") or {}).items():
        yield f"evaluated {name}", f"sha256 {known_by[:_SHORT]}"
