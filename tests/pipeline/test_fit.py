"""What training and evaluation would refuse of a target is refused before a server starts, by a run and by a plan."""

import re
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import overrides
from tests.pipeline.test_artifacts import Notes

from eagle3 import config
from eagle3.config.schema import DrafterConfig
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, Eagle3Error, TrainingError
from eagle3.pipeline.child import run_child
from eagle3.pipeline.inputs import keep_inputs
from eagle3.pipeline.plan import print_plan
from eagle3.pipeline.start import check_start
from eagle3.target.info import read_info


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    write_chat_model(folder / "model")
    write_conversations(folder / "chat.jsonl", 4)
    (folder / "bad.jsonl").write_text('{"prompt": "fine"}\n{"prompt": null}\n')
    (folder / "held_out.jsonl").write_text('{"prompt": "fine"}\n')
    return folder


@pytest.fixture(autouse=True)
def _hydra():
    config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config.PROJECT / "conf"), version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def composed(place: Path, *more: str) -> config.Config:
    return config.load(compose("config", [*overrides(place), "tracking=disabled", *more]))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["drafter.draft_vocab_size=100000"], "drafter.draft_vocab_size=100000: more than the target's vocabulary"),
        (["drafter.num_kv_heads=3"], "drafter.num_kv_heads=3: does not divide"),
        (["drafter.head_dim=7"], "drafter.head_dim=7"),
        (["layers.boundaries=[1,9,20]"], "layers.boundaries: [9, 20] outside 1..5"),
        (["layers.boundaries=[1,9,20]", "layers.capture=[1,2,3]"], "layers.boundaries: [9, 20] outside 1..5"),
        (["layers.boundaries=[1,2]", "layers.capture=[1,3]"], "layers.capture: lacks [2]"),
        (["layers.boundaries=null"], "layers.boundaries: null means"),
        (["bench.in_run=true", "bench.prefill_tokens=100000"], "bench: sequences of 100000 tokens"),
        (["evaluate.drafter={place}/model"], "model: "),
        (["evaluate=chain", "evaluate.max_new_tokens=100000"], "evaluate.max_new_tokens: 100000 leaves no room"),
        (["evaluate=chain", "evaluate.prompts=[{place}/bad.jsonl]"], "bad.jsonl:2: no messages"),
        (["evaluate=chain", "evaluate.prompts=[held_out,{place}/held_out.jsonl]"], "would be called held_out"),
        (["evaluate=chain", "evaluate.prompts=[gone.jsonl]"], "evaluate.prompts: gone.jsonl is no file"),
    ],
)
def test_what_does_not_fit_the_target_is_refused_at_the_start(place: Path, more: list[str], says: str) -> None:
    given = [item.format(place=place) for item in more]
    for start in (check_start, print_plan):
        with pytest.raises(Eagle3Error) as raised:
            start(composed(place, *given))
        assert says in str(raised.value)
        assert "the same command" not in str(raised.value)


def test_what_a_run_does_not_come_to_is_not_refused(place: Path) -> None:
    check_start(composed(place, "drafter.draft_vocab_size=100000", "until=extract"))


def test_a_gpu_that_is_not_there_is_told_with_what_works(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError) as raised:
        check_start(composed(place, "server=cuda", "trainer=gpu", "evaluate=served"))
    told = re.search(r"choose (\S.*?),", str(raised.value))
    assert told is not None
    check_start(composed(place, *told[1].split()))


def test_a_plan_says_what_is_not_there_and_is_made_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement of the served target (`until=bench`) needs no conversations."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    given = ("server=cuda", "trainer=gpu", "dataset.path=gone.jsonl")
    print_plan(composed(place, *given))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("before it can run: ")]
    assert ["gone.jsonl is not there" in told[0], "no GPU here" in told[1], len(told)] == [True, True, 2]
    print_plan(composed(place, *given, "until=bench", "bench.prefill_tokens=100"))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("before it can run: ")]
    assert "server.device=cuda: torch finds no GPU here; choose server=cpu" in line


def test_only_a_gpu_that_is_used_is_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^trainer\.accelerator=gpu: torch"):
        check_start(composed(place, "trainer=gpu"))
    with pytest.raises(ConfigError, match=r"^server\.device=cuda: torch"):
        check_start(composed(place, "server=cuda", "until=prepare", "prepare.regenerate=true"))
    check_start(composed(place, "server=cuda", "trainer=gpu", "until=prepare"))
    target = read_info(place / "model")
    drafter = Drafter(DrafterShape.build(DrafterConfig(draft_vocab_size=32), target, 3))
    export_drafter(drafter, torch.arange(32), [1, 2, 3], target, place / "given", "0.5.23")
    check_start(composed(place, "server=cuda", "evaluate=chain", f"evaluate.drafter={place / 'given'}"))


def test_a_plan_of_serving_has_every_server(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(composed(place, "server=cuda", "evaluate=served"))
    evaluate = capsys.readouterr().out.partition("evaluate: ")[2]
    commands = dict(re.findall(r"^  server    (\w+): (.*)$", evaluate, re.MULTILINE))
    assert list(commands) == ["none", "s2k1d3", "s3k1d4", "s5k1d6", "s4k4d16", "untrained"]
    assert "speculative" not in commands["none"]
    assert "--speculative-num-steps 5" in commands["s5k1d6"]
    assert "/train/" in commands["s5k1d6"]
    assert "/untrained" in commands["untrained"].partition("--speculative-draft-model-path")[2]


def test_what_is_kept_of_a_run_is_found_from_anywhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    prompts = "evaluate.prompts=[held_out,chat,bad.jsonl]"
    cfg = compose("config", [*overrides(place), "dataset.path=chat.jsonl", "evaluate.drafter=model", prompts])
    keep_inputs(cfg)
    assert cfg.dataset.path == str(place / "chat.jsonl")
    assert cfg.evaluate.drafter == str(place / "model")
    assert cfg.evaluate.prompts == ["held_out", "chat", str(place / "bad.jsonl")]
    cfg = compose("config", [*overrides(place), "dataset.path=datasets/quickstart.jsonl"])
    keep_inputs(cfg)
    assert cfg.dataset.path == "datasets/quickstart.jsonl", "the project may be moved"


@pytest.mark.parametrize(
    ("code", "said", "kind", "kept"),
    [
        (2, "error: no such thing", ConfigError, False),
        (1, "error: no such thing", TrainingError, False),
        (1, "a traceback", TrainingError, True),
    ],
)
def test_a_child_says_itself_what_helps_and_where_it_cannot_the_same_command_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str, kind: type[Eagle3Error], kept: bool
) -> None:
    (tmp_path / "ends.py").write_text(f"import sys\nprint({said!r})\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(kind) as raised:
        run_child("ends", {}, tmp_path, tmp_path / "log", Notes())
    assert ("the same command continues" in str(raised.value)) == kept
