"""What Hydra and OmegaConf complain of, said as: which key, what is wrong, what to write instead."""

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hydra.errors import OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from eagle3.config.in_file import in_file, misshapen, profile_mistake, unreadable
from eagle3.config.schema import Config, DrafterConfig, OptimConfig

_KEYS = {
    "loss": "loss.kind=ce, kl or lk; loss.ttt_steps, loss.step_decay",
    "drafter": ", ".join(f"drafter.{field.name}" for field in dataclasses.fields(DrafterConfig)),
    "optim": ", ".join(f"optim.{field.name}" for field in dataclasses.fields(OptimConfig)),
}
"""Of groups with one option, of which another is what a user would look for."""


def _known_keys(error: OmegaConfBaseException) -> list[str]:
    kind = error.object_type
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


def _list_of(kind: Any, within: type = Config, above: str = "") -> str | None:
    """The key whose value is a list of such objects: OmegaConf names what is wrong in one of them by its own keys."""
    for name, hint in get_type_hints(within).items():
        if get_origin(hint) is list and get_args(hint) == (kind,):
            return f"{above}{name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found = _list_of(kind, hint, f"{above}{name}.")
            if found is not None:
                return found
    return None


def explain(error: BaseException) -> str:
    """One or two lines for a composition error; the first line of its own text where we know nothing better."""
    if told := unreadable(error) or profile_mistake(error):
        return told
    if (composed := in_file(error)) is not None:
        return misshapen(*composed) or f"{composed[0]}: {explain(composed[1])}"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        key, names = cause.full_key, _known_keys(cause)
        leaf = str(cause.key) if cause.key is not None else key.rsplit(".", 1)[-1]
        where = f"{holder}: " if key == leaf and (holder := _list_of(cause.object_type)) else ""
        if names and leaf not in names:
            close = difflib.get_close_matches(leaf, names, n=1)
            hint = f"did you mean {key.removesuffix(leaf)}{close[0]}?" if close else f"known here: {', '.join(names)}"
            if key == f"server.{leaf}" and not close:
                hint += f". A flag of SGLang's own is set with +server.flags.common.{leaf}=..."
            return f"{where}{key}: no such key; {hint}"
        if "is not in struct" in str(cause):  # a key of a free dictionary, such as server.flags.common
            added = f"write +{key}=..., or ++{key}=... where some choices of a sweep have it"
            return f"{key}: not in the composed configuration; to add it, {added}"
        reason = (cause.msg or str(cause)).strip().splitlines()[0]
        return f"{where}{key}: {reason}"
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    # Hydra lists where it searched; the options are what a user wants to read.
    keep = [line for line in lines if not re.match(r"\s*(Config search path|.*provider=)", line)]
    if (group := re.search(r"Could not find '(\w+)/", str(error))) and (keys := _KEYS.get(group[1])):
        keep.append(f"What differs is a key of the group: {keys}")
    for launcher in ("submitit", "ray"):
        if any(f"hydra/launcher/{launcher}" in line for line in keep):
            keep.append(f"Its package is not installed: pip install hydra-{launcher}-launcher (docs/sweeps.md)")
    return "\n".join(keep[:12]) or type(error).__name__


def _unreadable(error: OverrideParseException) -> str:
    """Of an override that Hydra's grammar does not take: most often a value with a character that wants quotes."""
    key, equals, value = error.override.partition("=")
    if not equals:
        return f"{error.override}: not an override; write KEY=VALUE"
    if value[:1] in "\"'[{(":
        return f"{error.override}: {error.message.splitlines()[0]}; see that quotes and brackets are closed"
    quoted = f'{key}="{value}"'.replace("'", "'\\''")
    return f"{error.override}: the value has a character that Hydra reads as its own; quote it twice: '{quoted}'"


def choices(conf: Path) -> str:
    """What `python run.py` with nothing chosen says: the experiments, each with its own first comment."""
    rows = []
    for path in sorted((conf / "experiment").glob("*.yaml")):
        comments = [line.lstrip("# ").strip() for line in path.read_text().splitlines() if line.startswith("#")]
        about = [line for line in comments if line and not line.startswith(("@package", "python run.py"))]
        rows.append(f"  experiment={path.stem:<12} {about[0] if about else ''}")
    return "\n".join(
        [
            "Nothing chosen. An experiment is a complete configuration:",
            *rows,
            "",
            "  python run.py experiment=quickstart             a drafter of a small real model, on this machine's CPU",
            "  python run.py experiment=kimi_k25 mode=plan     every command, byte and artifact; starts nothing",
            "  python run.py experiment=quickstart --cfg job   the composed configuration",
            "",
            "Or compose your own from the groups under conf/: target=... dataset=... server=... trainer=...",
            "(README.md, 'Your own model')",
        ]
    )
