"""`eagle3 export PATH`: a drafter for a named SGLang version, or in speculators' layout, with a model card."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3.commands.card import Card, write_card
from eagle3.commands.kinds import Kind, kind_of
from eagle3.commands.origin import made_of
from eagle3.commands.verify import installed_version, target_of
from eagle3.config.origin import read_origin, write_origin
from eagle3.errors import EXIT_DONE, ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo, read_info
from eagle3.tracking.results import read_json


def run_export_drafter(
    path: Path,
    out: Path | None,
    form: str,
    sglang_version: str | None = None,
    target: Path | None = None,
    boundaries: list[int] | None = None,
    verifier: str | None = None,
) -> int:
    """Writes the folder, reads it back strictly, and prints how it is served. What made the drafter goes with it.

    Args:
        path: a run, a training, or a drafter's folder, also one that someone else made.
        out: the new folder; by default beside the drafter.
        form: sglang or speculators.
        boundaries: what a drafter of others was trained on, where its config.json is not to be believed.
        verifier: what the target is called where the drafter will be served.

    Raises:
        ConfigError: the path has no drafter, the target isn't known, or the drafter can't be expressed so.
        Eagle3Error: the drafter is faulty, or the result can't be written.
    """
    from eagle3.drafter.check import check_drafter

    folder = _drafter_of(path)
    info = _target_of(folder, target)
    if form == "speculators" and sglang_version is not None:
        raise ConfigError("--sglang-version: has no meaning for --format speculators; leave it out")
    own = read_json(folder / "config.json").get("eagle3") or {}
    read_by = None if own else installed_version()
    problems = check_drafter(folder, info, boundaries, read_by)
    if problems:
        raise Eagle3Error(f"{folder}: {'; '.join(problems)}")
    version = sglang_version or own.get("sglang_version") or installed_version()
    out = out or folder.parent / (f"drafter-sglang-{version}" if form == "sglang" else "drafter-speculators")
    if out.resolve() == folder.resolve():
        raise ConfigError(f"{out}: is the drafter itself; give another folder")
    verifier = verifier or _name_of(info)
    trained_on = _write(folder, out, form, info, version, read_by, boundaries, verifier)
    write_origin(read_origin(folder) or read_origin(folder.absolute().parent), out)
    again = check_drafter(out, info, trained_on)
    if again:
        raise Eagle3Error(f"{out}: {'; '.join(again)}")
    made_for = f"SGLang {version}" if form == "sglang" else "vLLM (speculators 0.9)"
    steps = min(3, _draft_tokens(folder))
    write_card(out, Card(folder, info, verifier, trained_on, made_for, serve_command(form, verifier, out.name, steps)))
    print(f"{out}: for {made_for}, boundaries {trained_on}; checked")
    print(serve_command(form, verifier, str(out), steps))
    return EXIT_DONE


def _write(
    folder: Path,
    out: Path,
    form: str,
    info: TargetInfo,
    version: str,
    read_by: str | None,
    boundaries: list[int] | None,
    verifier: str,
) -> list[int]:
    from eagle3.drafter.capture import not_served
    from eagle3.drafter.export import export_drafter
    from eagle3.drafter.load import load_drafter
    from eagle3.drafter.speculators import export_speculators

    loaded = load_drafter(folder, info, read_by, boundaries)
    if form == "sglang":
        if lacking := not_served(loaded.drafter.shape, version):
            raise ConfigError(f"--sglang-version {version}: {'; '.join(lacking)}")
        args = (loaded.drafter, loaded.draft_ids, loaded.boundaries, info, out, version, loaded.embedding)
        export_drafter(*args)
    else:
        steps = _draft_tokens(folder)
        export_speculators(loaded.drafter, loaded.draft_ids, loaded.boundaries, info, out, verifier, steps)
    return loaded.boundaries


def _draft_tokens(folder: Path) -> int:
    """As many as it was trained for, 3 where that is not known."""
    from omegaconf import OmegaConf

    made = folder.absolute().parent
    config: Any = read_json(made / "job.json").get("config") or {}
    for file in (made / "config.yaml", folder / "config.yaml"):
        if not config and file.is_file():
            config = OmegaConf.to_container(OmegaConf.load(file))
    return int((config.get("loss") or {}).get("ttt_steps") or 3)


def _drafter_of(path: Path) -> Path:
    kind = kind_of(path)
    folder = path if kind is Kind.DRAFTER else path / "drafter"
    if kind not in (Kind.RUN, Kind.TRAINING, Kind.DRAFTER) or not (folder / "config.json").is_file():
        raise ConfigError(f"{path}: {kind} without a drafter; give a run, a training or a drafter's folder")
    return folder


def _target_of(folder: Path, target: Path | None) -> TargetInfo:
    near, prefix = target_of(folder)
    if target is None and near is None:
        raise ConfigError(f"{folder}: which target is it for? Add --target FOLDER, the model's local folder")
    made = made_of(folder).get("target") or {}
    info = read_info(target or Path(str(near)), text_prefix=prefix, trust_remote_code=True)
    known = made if target is None else {}
    return replace(info, name=known.get("name") or info.name, source=known.get("source") or info.source)


def _name_of(info: TargetInfo) -> str:
    if info.source.startswith("hub:"):
        return info.source.removeprefix("hub:").partition("@")[0]
    return str(info.path)


def serve_command(form: str, target: str, drafter: str, steps: int) -> str:
    """One shell command; the flags that the target itself needs are to be added."""
    if form == "speculators":
        config = json.dumps({"method": "eagle3", "model": drafter, "num_speculative_tokens": steps})
        return f"vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(config)}"
    return " \\\n  ".join(
        (
            f"python -m sglang.launch_server --model-path {shlex.quote(target)}",
            f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {shlex.quote(drafter)}",
            f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}",
        )
    )
