"""`mode=plan`: commands with their environment, what stages read, write and reuse, bytes needed against bytes free.

Starts nothing, downloads nothing, writes nothing.
"""

import hashlib
import json
import shlex
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3.config import Config
from eagle3.config.schema import DraftSetting, NcclProfile
from eagle3.config.validate import BENCH, STAGES, boundaries_of
from eagle3.data.layout import DTYPES
from eagle3.data.space import dataset_bytes
from eagle3.errors import ConfigError, Eagle3Error, ServerError
from eagle3.files.disk import free_bytes, gib, require_writable, used_bytes
from eagle3.files.json_file import read_json
from eagle3.pipeline.artifacts import Artifact, unwritable
from eagle3.pipeline.bench import bench_details
from eagle3.pipeline.child import JOB_FILE, training_module
from eagle3.pipeline.fit import require_fit
from eagle3.pipeline.gpus import require_gpus
from eagle3.pipeline.inputs import find_inputs
from eagle3.pipeline.stages import Stages, artifacts_root, bench_artifact, left_out, stages_of
from eagle3.server.flags import Role, server_command
from eagle3.target.info import TargetInfo
from eagle3.target.peek import peek_target
from eagle3.target.resolve import cache_folder
from eagle3.units import counted

LATER = "<decided once {} is at hand>"


@dataclass
class Line:
    """One stage of the plan."""

    stage: str
    state: str
    """made, continued or reused."""
    reads: str | None
    writes: str
    details: list[str]
    key: str
    """The same for two jobs of a sweep that share what is made here."""
    needed: int | None = 0
    """Bytes of hidden states that are still to be written; None where that is not known."""

    def text(self, state: str | None = None) -> str:
        """All that is known, in lines; `state`: in the place of its own."""
        reads = [f"  reads     {self.reads}"] if self.reads else []
        details = [] if self.state == "reused" else [f"  {detail}" for detail in self.details]
        return "\n".join([f"{self.stage}: {state or self.state}", *reads, f"  writes    {self.writes}", *details, ""])


@dataclass
class Plan:
    name: str
    target: str
    tracking: str
    root: Path
    """Of the artifacts."""
    lines: list[Line] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What must be there before it can run, and is not; a plan may be made where it will not run."""
    refused: str | None = None
    """A folder of the artifacts that a run could not write, and what to do."""

    def head(self) -> str:
        return f"target    {self.target}\nwandb     {self.tracking}\n"


def _state(artifact: Artifact) -> str:
    if artifact.done:
        return "reused"
    return "continued" if (artifact.folder / "inputs.json").exists() else "made"


def _tokens(cfg: Config, stages: Stages | None) -> tuple[int | None, str]:
    """(tokens, how that is known)."""
    if stages is not None and (counted := read_json(stages.prepare.folder / "prepare.json").get("tokens")):
        return int(counted), "counted"
    if cfg.dataset.tokens is not None:
        return cfg.dataset.tokens, "dataset.tokens"
    return None, "known once prepared; set dataset.tokens to plan before that"


def _space(cfg: Config, stages: Stages | None, hidden_size: int, capture: list[int]) -> list[str]:
    """Bytes needed against bytes free, and a word when they do not fit."""
    tokens, source = _tokens(cfg, stages)
    if tokens is None:
        return [f"size      unknown: {source}"]
    folder = stages.extract.folder if stages else artifacts_root(cfg) / "extract"
    if stages and stages.extract.done:
        return [f"size      {gib(used_bytes(folder))} on the disk already"]
    needed, there, free = (
        dataset_bytes(tokens, hidden_size, len(capture) + 1, cfg.dataset.dtype),
        used_bytes(folder),
        free_bytes(folder),
    )
    states = f"{len(capture) + 1} states x {hidden_size} x {DTYPES[cfg.dataset.dtype][1]} B"
    lines = [f"size      {tokens:,} tokens ({source}) x ({states}) = {gib(needed)}; free there: {gib(free)}"]
    if needed - (there if stages else 0) > free:
        lines.append(
            f"          DOES NOT FIT: {gib(needed - free)} too few. The run would be refused before a server starts; "
            "set paths.artifacts to a larger disk, or take fewer conversations or boundaries."
        )
    return lines


def _nccl(profile: NcclProfile) -> str:
    settings = " ".join(f"{name}={value}" for name, value in profile.env.items())
    return f"{profile.name}: {settings or 'NCCL decides'}"


def _child(module: str, folder: str) -> str:
    return shlex.join((sys.executable, "-m", module, f"{folder}/{JOB_FILE}"))


def _command(cfg: Config, model: str, role: Role, dump: Path | None) -> list[str]:
    try:
        return [f"server    {server_command(cfg, role, model, dump=dump).shown()}"]
    except ServerError as error:  # no SGLang on the machine that the plan is made on
        return [f"server    {error}"]


def _served(cfg: Config, model: str, drafter: str, out: str) -> list[str]:
    """Every server that is started: without speculation, with each of the drafts, and with random weights."""
    from eagle3.evaluation.figures import NONE, UNTRAINED, name_of
    from eagle3.evaluation.served import served_command

    wanted = cfg.evaluate
    servers: list[tuple[str, DraftSetting | None, str]] = [(NONE, None, drafter)]
    servers += [(name_of(draft), draft, drafter) for draft in wanted.drafts]
    if wanted.untrained:
        servers.append((UNTRAINED, wanted.drafts[0], f"{out}/{UNTRAINED}"))
    at_a_time = "all at a time" if wanted.beside else "one after the other"
    lines = [
        f"servers   {len(servers)}, {at_a_time}; {wanted.rounds} rounds in turn",
        f"nccl      {_nccl(cfg.nccl.serving)}",
    ]
    try:
        for name, draft, path in servers:
            command = served_command(cfg, Path(model), Path(path), draft, Path(out) / "capture" / name)
            lines.append(f"server    {name}: {command.shown()}")
    except ServerError as error:
        lines.append(f"server    {error}")
    return lines


def _still_needed(cfg: Config, stages: Stages | None, hidden_size: int, capture: list[int]) -> int | None:
    if stages is not None and stages.extract.done:
        return 0
    tokens, _ = _tokens(cfg, stages)
    if tokens is None:
        return None
    there = used_bytes(stages.extract.folder) if stages is not None else 0
    return max(dataset_bytes(tokens, hidden_size, len(capture) + 1, cfg.dataset.dtype) - there, 0)


def _keys(cfg: Config, capture: list[int], boundaries: list[int]) -> dict[str, str]:
    """What stands for an artifact's folder where that is not known yet: of the settings that it depends on."""
    whole = asdict(cfg)
    asked: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for stage, more in (
        ("prepare", {name: whole[name] for name in ("target", "dataset", "prepare")}),
        ("extract", {"server": whole["server"], "capture": capture}),
        ("train", {"boundaries": boundaries, **{n: whole[n] for n in ("drafter", "loss", "optim", "trainer", "seed")}}),
        ("evaluate", {"evaluate": whole["evaluate"], "nccl": whole["nccl"]["serving"]}),
    ):
        asked |= more
        keys[stage] = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
    return keys


def _bench_line(cfg: Config, target: TargetInfo | None) -> Line:
    details = bench_details(cfg, str(target.path) if target else cfg.target.path)
    if target is None:
        asked = (asdict(cfg.bench), asdict(cfg.nccl.serving), details)
        return Line("bench", "made", None, LATER.format("the target"), details, json.dumps(asked))
    artifact = bench_artifact(cfg, target)
    return Line("bench", _state(artifact), None, str(artifact.folder), details, str(artifact.folder))


def _lines(cfg: Config, target: TargetInfo | None, stages: Stages | None) -> list[Line]:
    shape = target or cfg.target.shape
    if shape is None:
        raise ConfigError(
            f"target.path: {cfg.target.path} is not on this machine, so its dimensions are unknown; fetch it first, "
            "or give target.shape (hidden_size, num_layers, vocab_size, context_length)"
        )
    boundaries, capture = boundaries_of(cfg, shape.num_layers)
    model = str(target.path) if target else cfg.target.path
    later = LATER.format("the target" if target is None else cfg.dataset.path)
    root = artifacts_root(cfg)
    folders: dict[str, str] = {name: str(root / name / later) for name in STAGES}
    states: dict[str, str] = dict.fromkeys(STAGES, "made")
    if stages is not None:
        for artifact in stages.in_order():
            folders[artifact.stage], states[artifact.stage] = str(artifact.folder), _state(artifact)
        capture = stages.extract.inputs["capture"]
    keys = _keys(cfg, capture, boundaries) if stages is None else folders
    dump = Path(folders["extract"]) / "work"
    prepare = [
        f"tokenise  {cfg.dataset.path}, at most {cfg.dataset.max_length:,} tokens each ({cfg.dataset.on_long} longer)"
    ]
    if cfg.prepare.regenerate:
        own = f", and {cfg.prepare.own_prompts:,} prompts that it writes itself" if cfg.prepare.own_prompts else ""
        prepare.append(f"asks      the target for every answer{own}")
        prepare += [f"nccl      {_nccl(cfg.nccl.serving)}", *_command(cfg, model, "serving", None)]
    extract = [
        f"capture   boundaries {capture} and the final state, {cfg.dataset.dtype}",
        *_space(cfg, stages, shape.hidden_size, capture),
        f"nccl      {_nccl(cfg.nccl.extraction)}",
        *_command(cfg, model, "extraction", dump),
    ]
    layers = counted(cfg.drafter.num_layers, "layer")
    train = [
        f"drafter   {layers}, boundaries {boundaries}, {cfg.drafter.draft_vocab_size:,} draft tokens",
        f"loss      {cfg.loss.kind}, {cfg.loss.ttt_steps} TTT steps",
        f"child     {_child(training_module(cfg.trainer), folders['train'])}",
    ]
    evaluate = [f"child     {_child('eagle3.evaluation.main', folders['evaluate'])}"]
    hidden, drafter = folders["extract"], cfg.evaluate.drafter or f"{folders['train']}/drafter"
    if cfg.evaluate.kind == "served":
        evaluate = _served(cfg, model, drafter, folders["evaluate"])
    measured = {"simulated": hidden}.get(cfg.evaluate.kind, f"{folders['prepare']}, prompts {cfg.evaluate.prompts}")
    lines = [
        Line("prepare", states["prepare"], cfg.dataset.path, folders["prepare"], prepare, keys["prepare"]),
        Line("extract", states["extract"], folders["prepare"], hidden, extract, keys["extract"]),
        Line("train", states["train"], hidden, f"{folders['train']}/drafter", train, keys["train"]),
        Line("evaluate", states["evaluate"], f"{measured}, {drafter}", folders["evaluate"], evaluate, keys["evaluate"]),
    ]
    lines[1].needed = _still_needed(cfg, stages, shape.hidden_size, capture)
    return [line for line in lines[: STAGES.index(cfg.until) + 1] if line.stage not in left_out(cfg)]


def plan_of(cfg: Config) -> Plan:
    """What a run of this configuration would do.

    Raises:
        ConfigError: the configuration does not fit the target.
    """
    missing = []
    for look in (find_inputs, require_gpus):
        try:
            look(cfg)
        except ConfigError as error:
            missing.append(str(error))
    target = peek_target(cfg.target, cache_folder(cfg.paths.cache))
    if target is not None:
        require_fit(cfg, target)
    where = target.path if target else f"{cfg.target.path} (not on this machine yet: fetched first)"
    plan = Plan(cfg.name, f"{cfg.target.name}: {where}", cfg.tracking.mode, artifacts_root(cfg), missing=missing)
    if cfg.until != BENCH:
        here = target is not None and Path(cfg.dataset.path).exists()
        plan.lines = _lines(cfg, target, stages_of(cfg, target) if target is not None and here else None)
    if cfg.until == BENCH or cfg.bench.in_run:
        plan.lines.append(_bench_line(cfg, target))
    plan.refused = _refused(plan)
    return plan


def _refused(plan: Plan) -> str | None:
    """The first folder that can't be written, of those that a run would write."""
    for line in plan.lines:
        folder = plan.root / line.writes
        try:
            if line.state != "reused":
                require_writable(folder)
        except OSError as error:
            return unwritable(Path(error.filename), error)
    return None


def print_plan(cfg: Config) -> None:
    """Prints the plan.

    Raises:
        ConfigError: as plan_of.
        Eagle3Error: the artifacts can't be written.
    """
    plan = plan_of(cfg)
    print(f"plan of {plan.name}: nothing is started\n\n{plan.head()}")
    for line in plan.lines:
        print(line.text())
    for text in plan.missing:
        print(f"before it can run: {text}")
    if plan.refused:
        raise Eagle3Error(plan.refused)
