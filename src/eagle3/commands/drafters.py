"""What the commands need of a drafter's folder besides itself: its target, and the SGLang that will serve it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import made_of, part
from eagle3.config.origin import PROVENANCE
from eagle3.errors import ConfigError
from eagle3.files.json_file import json_or_empty
from eagle3.target.info import TargetInfo, read_info


def target_of(folder: Path) -> tuple[Path | None, str]:
    """(local folder of the target, prefix of its text model) from the run or training that a drafter lies in."""
    job = json_or_empty(folder.absolute().parent / "job.json")
    made = part(made_of(folder), "target")
    path = job.get("target") or made.get("path")
    prefix = job.get("text_prefix") or made.get("text_prefix") or ""
    return (Path(path) if isinstance(path, str) and Path(path).is_dir() else None), str(prefix)


def _broken(folder: Path) -> list[Path]:
    """Of what `target_of` looks into: files that are there and say nothing."""
    above = folder.absolute().parent
    places = (above / "job.json", above / PROVENANCE, folder / PROVENANCE)
    return [file for file in places if file.is_file() and not json_or_empty(file)]


def read_target(folder: Path, given: Path | None) -> TargetInfo:
    """The target that was given, or the one that the drafter in `folder` was made for.

    Raises:
        ConfigError: neither is known, or it is no model's folder.
    """
    near, prefix = target_of(folder)
    if given is None and near is None:
        broken = "".join(f"{file} would say it, and is broken or empty. " for file in _broken(folder))
        raise ConfigError(f"{folder}: which target is it for? {broken}Add --target FOLDER, the model's local folder")
    if given is not None and not given.is_dir():
        raise ConfigError(f"--target {given}: no such folder; give the model's local folder")
    if given is not None and (given / "config.json").is_file() and kind_of(given) in (Kind.DRAFTER, Kind.DAMAGED):
        raise ConfigError(f"--target {given}: is a drafter; give the folder of the model that it is for")
    info = read_info(given or Path(str(near)), text_prefix=prefix, trust_remote_code=True)
    known = part(made_of(folder), "target") if given is None else {}
    return replace(info, name=str(known.get("name") or info.name), source=str(known.get("source") or info.source))


def sglang_version_of(given: str | None) -> str | None:
    """A version as `--sglang-version` names it, in its plain form: ` v0.5.17` is 0.5.17. Raises ConfigError."""
    if given is None:
        return None
    try:
        return str(Version(given))
    except InvalidVersion:
        raise ConfigError(f"--sglang-version {given!r}: not a version; give one like 0.5.23") from None


def unknown_version(version: str | None) -> str | None:
    """What is to be said of a version whose capture ids nobody here has looked at."""
    from eagle3.server.patches import dump_versions

    known = dump_versions()
    if version is None or known.hold(version):
        return None
    return (
        f"SGLang {version} is not among those known here ({known.oldest} to {known.newest}): what it makes of capture "
        "ids and of this drafter is taken to be as in the nearest of them"
    )


def installed_version() -> str:
    """The SGLang here, by which the capture ids of others' drafters are read. Raises ServerError without one."""
    from eagle3.server.arguments import installed

    return installed(None).version


def serve_command(form: str, target: str, drafter: str, steps: int, between: str = " \\\n  ") -> str:
    """One shell command; the flags that the target itself needs are to be added."""
    if form == "speculators":
        config = json.dumps({"method": "eagle3", "model": drafter, "num_speculative_tokens": steps})
        return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(config)}"
    return between.join(
        (
            f"python -m sglang.launch_server --model-path {shlex.quote(target)}",
            f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {shlex.quote(drafter)}",
            f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}",
        )
    )
