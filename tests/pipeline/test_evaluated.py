"""What names an evaluation: each key of the configuration changes it or does not, and which do is written down here."""

import copy
import dataclasses
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.foreign import as_others
from tests.drafter.targets import make_target
from tests.evaluation.recorded_loads import loads
from tests.training.made import config_of

from eagle3.config import load
from eagle3.config.schema import Config, DrafterConfig, DraftSetting, RopeScaling, ShapeConfig
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, DataError
from eagle3.files.json_lines import sealed
from eagle3.pipeline.stages import bench_artifact, stages_of
from eagle3.target.info import read_info

NEVER = {
    *("name", "mode", "until", "target.name", "target.revision", "target.pypi"),
    *("layers.capture", "dataset.name", "dataset.split", "dataset.bad_rows", "dataset.shard_gib", "dataset.tokens"),
    *("server.host", "server.port", "server.allow_untested", "server.startup_timeout_s", "server.stall_timeout_s"),
    *("server.max_restarts", "server.concurrency", "nccl.extraction.name", "nccl.extraction.env", "nccl.serving.name"),
    *("nccl.extra", "prepare.max_new_tokens", "prepare.own_prompts"),  # nothing is regenerated
    *("trainer.num_workers", "trainer.checkpoint_every", "trainer.log_every", "trainer.master"),
}
"""Names, places, limits of time, how a server is asked, what only bounds or stores."""
NEVER_OF = ("target.shape.", "bench.", "tracking.", "sweep.", "paths.", "replay.")
PREPARE = {
    *("target.chat_template", "dataset.path", "dataset.limit", "dataset.max_length", "dataset.on_long"),
    *("dataset.held_out", "dataset.seed", "prepare.regenerate", "target.text_prefix"),
}
"""Which conversations are held out, and how they read."""
EXTRACT = {"dataset.dtype", "server.device", "server.dtype", "server.tp", "server.flags.extraction"}
ASKED = {"evaluate.prompts", "evaluate.limit", "evaluate.max_new_tokens", "target.trust_remote_code"}
CHAIN = PREPARE | ASKED | {"evaluate.drafts"}
SERVER = {"server.device", "server.tp", "server.dtype", "server.env", "server.flags.serving", "nccl.serving.env"}
LOADS = {"concurrency", "temperatures", "rounds", "beside", "untrained"}
LOSS = {"loss.kind", "loss.ttt_steps", "loss.step_decay"}
ARITHMETIC = {"trainer.accelerator", "trainer.precision"}
GIVEN = {
    "simulated": PREPARE
    | EXTRACT
    | LOSS
    | ARITHMETIC
    | {"trainer.tokens_per_batch", "layers.boundaries", "server.flags.common"},
    "chain": CHAIN | ARITHMETIC,
    "served": CHAIN | SERVER | {f"evaluate.{name}" for name in LOADS} | {"seed", "server.flags.common"},
}
"""What a drafter that is given is measured by."""
MADE = PREPARE | EXTRACT | {"server.flags.common", "layers.boundaries", "seed"}
MADE_OF = ("drafter.", "loss.", "optim.", "trainer.")
"""What further names one that is trained here, and so its evaluation."""


def read(kind: str, given: bool, key: str) -> bool:
    if key in NEVER or key.startswith(NEVER_OF):
        return False
    if given:
        return key in GIVEN[kind]
    return key in GIVEN[kind] | MADE | {"evaluate.untrained"} or key.startswith(MADE_OF)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    target = make_target(folder / "target")
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3)
    export_drafter(Drafter(shape), torch.arange(48), [2, 4, 5], target, folder / "drafter", "0.5.23")
    (folder / "talks.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    (folder / "others.jsonl").write_text('{"prompt": "c", "response": "d"}\n')
    (folder / "template.jinja").write_text("{{ messages }}")
    return folder


def config(folder: Path, kind: str, given: bool) -> Config:
    cfg = load(
        config_of(
            target={"name": "tiny", "path": str(folder / "target")},
            dataset={"path": str(folder / "talks.jsonl")},
            layers={"boundaries": [2, 4, 5]},
            server={"device": "cuda"},
            paths={"artifacts": str(folder / "artifacts")},
            evaluate={"kind": kind, "drafter": str(folder / "drafter") if given else None},
        )
    )
    cfg.trainer.accelerator = "gpu"
    cfg.target.shape = ShapeConfig(64, 8, 100, 256)
    cfg.drafter.rope_scaling = RopeScaling("yarn", 2.0, 2048)
    return cfg


def keys(found: Any, key: str = "") -> Iterator[str]:
    """Of every value of a configuration that is no group of others."""
    for field in dataclasses.fields(found):
        value, where = getattr(found, field.name), f"{key}.{field.name}" if key else field.name
        yield from keys(value, where) if dataclasses.is_dataclass(value) else [where]


def changed(cfg: Config, key: str, folder: Path) -> Config:
    """Another value of the key's type; whether it makes sense does not matter here."""
    cfg = copy.deepcopy(cfg)
    holder: Any = cfg
    *groups, field = key.split(".")
    for group in groups:
        holder = getattr(holder, group)
    chosen: dict[str, Any] = {
        "target.chat_template": str(folder / "template.jinja"),
        "dataset.path": str(folder / "others.jsonl"),
        "layers.boundaries": [1, 4, 5],
        "layers.capture": [1, 2, 4, 5],
        "evaluate.prompts": ["code"],
        "evaluate.drafts": [DraftSetting(2, 1, 3)],
    }
    setattr(holder, field, chosen.get(key) or other(getattr(holder, field), typing.get_type_hints(type(holder))[field]))
    return cfg


def other(value: Any, hint: Any) -> Any:
    kind = next((kind for kind in typing.get_args(hint) if kind is not type(None)), str)
    if value is None:
        value = {int: 7, float: 0.5}.get(kind, "") if isinstance(hint, types.UnionType) else ""
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [*value, typing.get_args(hint)[0](7)]
    if isinstance(value, dict):
        return {**value, "watchful": "7"}
    return value + 1 if isinstance(value, int | float) else f"{value}x"


SKIPPED = {"evaluate.kind", "evaluate.drafter", "evaluate.follow", "target.path", "server.python"}
"""Known by content, whatever they are called: test_measured_drafter.py."""


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["simulated", "chain", "served"])
def test_all_that_its_figures_depend_on_and_nothing_else_names_an_evaluation(
    place: Path, kind: str, given: bool
) -> None:
    cfg, target = config(place, kind, given), read_info(place / "target")
    every = [key for key in keys(cfg) if key not in SKIPPED]
    assert len(every) > 100
    before = stages_of(cfg, target).evaluate.folder.name
    moved = {key for key in every if stages_of(changed(cfg, key, place), target).evaluate.folder.name != before}
    wanted = {key for key in every if read(kind, given, key)}
    assert moved - wanted == set(), "these change nothing that is measured"
    assert wanted - moved == set(), "another configuration's figures would be taken for these"
    unknown = GIVEN[kind] | MADE | NEVER
    assert {key for key in unknown if key not in every} == set(), "these are no keys"


def test_what_the_shell_sets_for_nccl_names_what_a_server_measured(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no key, and NCCL reads it all the same; a profile's own value has the last word."""
    target = read_info(place / "target")

    def names(**env: str) -> tuple[str, str]:
        cfg = config(place, "served", True)
        cfg.nccl.serving.env = env
        return stages_of(cfg, target).evaluate.folder.name, bench_artifact(cfg, target).folder.name

    before, own = names(), names(NCCL_PROTO="LL")
    monkeypatch.setenv("NCCL_VERSION", "2.28.9")
    assert names() == before, "which package is in a container's image"
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    assert all(now != then for now, then in zip(names(), before, strict=True))
    assert names(NCCL_PROTO="LL") == own


def test_the_prompts_of_a_set_name_it_not_its_place(place: Path, tmp_path: Path) -> None:
    cfg, target = config(place, "chain", True), read_info(place / "target")
    folders = []
    for name, text in (("a/mine", "one"), ("b/mine", "one"), ("c/mine", "two"), ("c/other", "two")):
        file = tmp_path / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{{"prompt": "{text}"}}\n')
        cfg.evaluate.prompts = [str(file)]
        folders.append(stages_of(cfg, target).evaluate.folder)
    assert folders[0] == folders[1]
    assert len(set(folders)) == 3


def test_served_answers_that_are_followed_are_known_by_what_they_are(place: Path, tmp_path: Path) -> None:
    cfg, target = config(place, "chain", True), read_info(place / "target")
    cfg.evaluate.drafts = [DraftSetting()]
    folders = [stages_of(cfg, target).evaluate.folder]
    lines: list[bytes] = []
    for name, speed_up in (("a", 1.5), ("b", 1.5), ("c", 1.4)):
        (tmp_path / name).mkdir()
        lines = [sealed(dataclasses.asdict(load)) for load in loads([speed_up])]
        (tmp_path / name / "loads.jsonl").write_bytes(b"".join(lines))
        cfg.evaluate.follow = str(tmp_path / name)
        folders.append(stages_of(cfg, target).evaluate.folder)
    assert folders[1] == folders[2]
    assert len(set(folders)) == 3

    # What can't be followed is said before anything runs, by a plan too.
    cfg.evaluate.drafts = [DraftSetting(5, 1, 6)]
    with pytest.raises(DataError, match="no greedy answers with s5k1d6, but s3k1d4"):
        stages_of(cfg, target)
    cfg.evaluate.drafts = [DraftSetting()]
    (tmp_path / "c" / "loads.jsonl").write_bytes(lines[0] + lines[1].replace(b"101", b"102"))
    with pytest.raises(DataError, match="line 2 is not what was written"):
        stages_of(cfg, target)
    (tmp_path / "c" / "loads.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"evaluate.follow: .*c is no served evaluation"):
        stages_of(cfg, target)


def test_those_of_others_are_known_by_who_reads_their_ids(place: Path) -> None:
    cfg, target = config(place, "chain", True), read_info(place / "target")
    ours = stages_of(cfg, target).evaluate
    assert "read_by" not in ours.inputs["train"]
    as_others(place / "drafter")
    theirs = stages_of(cfg, target).evaluate
    assert theirs.inputs["train"]["read_by"]
