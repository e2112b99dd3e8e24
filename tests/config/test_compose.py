"""Every shipped YAML composes and validates; mistakes are named with their remedy; snapshots replay byte for byte."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eagle3 import config
from eagle3.config.explain import choices, explain
from eagle3.config.snapshot import replay_yaml, resolved_yaml
from eagle3.errors import ConfigError

CONF = config.PROJECT / "conf"
OPTIONS = sorted((p.parent.name, p.stem) for p in CONF.glob("*/*.yaml"))
BASE = ["target=smollm2", "dataset=quickstart", "server=cpu", "trainer=cpu"]


@pytest.fixture(autouse=True)
def _hydra():
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    return compose("config", list(overrides), return_hydra_config=hydra)


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=["/".join(o) for o in OPTIONS])
def test_every_option_composes_and_validates(group: str, option: str) -> None:
    chosen = {
        "experiment": [f"experiment={option}"],
        "nccl": [*BASE, f"nccl@nccl.extraction={option}", f"nccl@nccl.serving={option}"],
        "evaluate": [*(x for x in BASE if x != "server=cpu"), "server=cuda", f"evaluate={option}"],
        "layers": ["experiment=kimi_k25"] if option == "kimi_k25" else BASE,
    }.get(group, [*BASE, f"{group}={option}"])
    if option == "local":
        chosen += ["target.path=/models/mine", "target.name=mine"]
    if option == "jsonl":
        chosen += ["dataset.path=my.jsonl"]
    typed = config.load(composed(*chosen))
    assert typed.name


def test_every_option_begins_with_a_comment() -> None:
    for group, option in OPTIONS:
        assert (CONF / group / f"{option}.yaml").read_text().startswith("#"), f"{group}/{option}.yaml: say what it is"


def test_experiments_are_listed_with_their_first_comment() -> None:
    text = choices(CONF)
    assert "experiment=quickstart" in text
    assert "A drafter for SmolLM2-135M" in text


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("optim.lrr=1", "optim.lrr: no such key; did you mean optim.lr?"),
        ("optim.lr=abc", "optim.lr: Value 'abc'"),
        ("target=foo", "smollm2"),
        ("trainer.epochs=1.5", "trainer.epochs"),
        ("server.flags.commn.x=1", "did you mean server.flags.common?"),
        ("layers.boundaries=3", "layers.boundaries"),
        ("+foo=1", "foo: no such key"),
        ("+trainer.epoch=1", "did you mean trainer.epochs?"),
        ("evaluate.drafts=[{stps: 2}]", "evaluate.drafts: stps: no such key; did you mean steps?"),
        ("evaluate.drafts=[{steps: a}]", "evaluate.drafts: steps: Value 'a'"),
        ("evaluate.drafts=[3]", "evaluate.drafts[0]: "),
    ],
)
def test_a_wrong_override_names_key_and_remedy(override: str, says: str) -> None:
    with pytest.raises((HydraException, OmegaConfBaseException)) as raised:
        config.load(composed(*BASE, override))
    assert says in explain(raised.value)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["layers.boundaries=[30]"], "layers.boundaries: [30] outside 1..29"),
        (["layers.boundaries=[0,3]"], "layers.boundaries: [0] outside"),
        (["layers.boundaries=[3,2]"], "ascending"),
        (["layers.boundaries=[2,3]", "layers.capture=[3,4]"], "lacks [2]"),
        (["server.tp=0"], "server.tp"),
        (["server.device=tpu"], "cpu, cuda"),
        (["server.port=70000"], "server.port"),
        (["dataset.max_length=9000"], "dataset.max_length: 9000"),
        (["dataset.held_out=1"], "dataset.held_out"),
        (["dataset.on_long=drop"], "truncate, skip"),
        (["drafter.draft_vocab_size=50000"], "drafter.draft_vocab_size"),
        (["loss.kind=mse"], "loss.kind"),
        (["loss.ttt_steps=0"], "loss.ttt_steps"),
        (["loss.step_decay=0"], "loss.step_decay"),
        (["optim.betas=[0.9]"], "optim.betas"),
        (["trainer.epochs=0"], "trainer.epochs"),
        (["trainer.devices=0"], "trainer.devices"),
        (["trainer.strategy=fsdp"], "ddp, sharded"),
        (["trainer.strategy=sharded"], "trainer.strategy: sharded over one device"),
        (["trainer.nodes=2"], "trainer.master: None with trainer.nodes=2"),
        (["trainer.nodes=2", "trainer.master=node0"], "trainer.master: node0"),
        (["trainer.master=10.0.0.1:29500"], "trainer.master"),
        (["evaluate=served"], "evaluate.kind: served, with server.device=cpu"),
        (["evaluate=served", "server=cuda", "evaluate.follow=runs/x"], "evaluate.follow: served answers"),
        (
            ["evaluate=served", "server=cuda", "evaluate.beside=true"],
            "evaluate.beside: true, without server.flags.serving",
        ),
        (["evaluate.drafts=[{steps: 3, topk: 1, tokens: 8}]"], "evaluate.drafts[0].tokens: 8; a chain"),
        (["evaluate.drafts=[{steps: 2, topk: 2, tokens: 8}]"], "steps=2, topk=2 draft 2 to 7"),
        (["evaluate.concurrency=[]"], "evaluate.concurrency: empty"),
        (["until=deploy"], "until"),
        (["until=train", "evaluate.drafter=given"], "until: train, with evaluate.drafter"),
        (["evaluate.prompts=[{a: 1}]"], "evaluate.prompts: {'a': 1} is no single value"),
        (["layers.boundaries=[[1, 2], 3]"], "layers.boundaries: [1, 2] is no single value"),
        (["optim.lr=nan"], "optim.lr: nan"),
        (["server.stall_timeout_s=inf"], "server.stall_timeout_s: inf"),
        (["paths.artifacts="], "paths.artifacts: empty"),
        (["name=a/b"], "name"),
        (["name='" + "é" * 128 + "'"], "name: 256 bytes"),
        (["+nccl.serving.env.CUDA_X=1"], "nccl.serving.env.CUDA_X"),
        (["~dataset"], "dataset: not set"),
    ],
)
def test_an_impossible_combination_names_key_and_remedy(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.load(composed(*BASE, *overrides))
    assert says in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=quickstart"],
        ["experiment=kimi_k25"],
        ["experiment=quickstart", "debug=tiny", "layers.boundaries=[2,9,27]", "+server.env.OMP_NUM_THREADS='2'"],
        ["experiment=llama31_8b", "tracking=online", "tracking.tags=[a,b]", "optim.lr=3e-4"],
        ["experiment=quickstart", "server.flags.common.mem_fraction_static=null", "trainer.max_steps=7"],
    ],
)
def test_a_snapshot_replays_byte_for_byte(overrides: list[str], tmp_path: Path) -> None:
    cfg = composed(*overrides, hydra=True)
    chosen = dict(cfg.hydra.runtime.choices)
    OmegaConf.set_struct(cfg, False)
    del cfg["hydra"]
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "replay.yaml").write_text(replay_yaml(cfg, chosen))
    again = compose("config", ["snapshot=replay", f"hydra.searchpath=[file://{tmp_path}]"], return_hydra_config=True)
    replayed_choices = {
        g: o for g, o in again.hydra.runtime.choices.items() if g != "snapshot" and not g.startswith("hydra/")
    }
    assert replayed_choices == {g: o for g, o in chosen.items() if g != "snapshot" and not g.startswith("hydra/")}
    OmegaConf.set_struct(again, False)
    del again["hydra"]
    assert resolved_yaml(again) == resolved_yaml(cfg)
