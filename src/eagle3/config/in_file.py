"""What is wrong in one file of the configuration, or with how a profile of NCCL is chosen: which file, where, what."""

import re
import traceback
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from eagle3.config.load import PROJECT
from eagle3.config.serving import NcclConfig

_PROFILE = "a profile is `name: mine` and `env:` with a line for each variable, as `NCCL_PROTO: LL`"


def unreadable(error: BaseException) -> str | None:
    """One line for a file that Hydra could not read: no YAML, not UTF-8, not permitted. None for any other error."""
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark) is not None:
        at_end = re.search("<stream end>|end of stream", error.problem or "")
        if at_end and error.context_mark is not None:  # what is not closed, not where the file ends
            mark = error.context_mark
        told = ", ".join(text for text in (error.context, error.problem) if text)
        return f"{_named(mark.name)}, line {mark.line + 1}: {told}"
    path = _being_read(error)
    if path is None:
        return None
    while not str(error) and error.__cause__ is not None:  # Hydra's own around OmegaConf's may be empty
        error = error.__cause__
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{_named(path)}: {next(iter(reason.splitlines()), type(error).__name__)}"


def in_file(error: BaseException) -> tuple[str, OmegaConfBaseException] | None:
    """(file, what OmegaConf says) of one that is YAML and does not fit the configuration; None for any other error."""
    found = re.match(r"In '(.+)': \w+ raised while composing config", str(error))
    if found is None or not isinstance(error.__context__, OmegaConfBaseException):
        return None
    return f"{found[1]}.yaml", error.__context__


def misshapen(file: str, cause: OmegaConfBaseException) -> str | None:
    """Of what `in_file` gives: that a value has the wrong shape, in the words of a YAML file; None where it has not."""
    text, key = (cause.msg or str(cause)).splitlines()[0], f"{cause.full_key}: " if cause.full_key else ""
    form = f"; {_PROFILE}" if file.startswith("nccl/") else ""
    if "is not Optional" in text:
        return f"{file}: {key}nothing is given; give a value, or leave the line out{form}"
    if re.search(r"Cannot merge DictConfig with ListConfig|Merge error: list is not", text):
        return f"{file}: {key}a list stands where lines of `key: value` belong{form}"
    if re.search(r"Cannot assign \w+ to Dict", text):
        return f"{file}: {key}a single value stands where lines of `key: value` belong{form}"
    return None


def profile_mistake(error: BaseException) -> str | None:
    """How a profile of NCCL is chosen, where it was tried otherwise; None for any other error."""
    text = str(error)
    if found := re.match(r"Could not override 'nccl'[\s\S]*\+nccl=(\S+)", text):
        return _choose("nccl", found[1])
    if (composed := in_file(error)) and composed[1].object_type is NcclConfig and composed[0].startswith("nccl/"):
        return _choose("+nccl", composed[0].removeprefix("nccl/").removesuffix(".yaml"))
    cause = error
    while not isinstance(cause, OmegaConfBaseException):
        if cause.__cause__ is None:
            return None
        cause = cause.__cause__
    found = re.search(r"str is not a subclass of NcclProfile. value: (\S+)", str(cause))
    if found is None or cause.full_key not in ("nccl.serving", "nccl.extraction"):
        return None
    return f"{cause.full_key}={found[1]}: a profile is chosen with nccl@{cause.full_key}={found[1]}"


def _choose(key: str, profile: str) -> str:
    servers = f"nccl@nccl.serving={profile} or nccl@nccl.extraction={profile}"
    return f"{key}={profile}: a profile is chosen for one server, or for each: {servers}"


def _being_read(error: BaseException) -> str | None:
    """The file that Hydra was reading, which says of no other error than YAML's own where it was."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "load_config" and "full_path" in frame.f_locals:
            return str(frame.f_locals["full_path"])
    return None


def _named(path: str) -> str:
    """From the project's folder where it is in there."""
    return str(Path(path).relative_to(PROJECT)) if Path(path).is_relative_to(PROJECT) else path
