"""What training and evaluation would refuse of a target is refused before a server starts, by a run and by a plan."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import overrides
from tests.pipeline.test_artifacts import Notes

from eagle3 import config
from eagle3.errors import ConfigError, Eagle3Error, TrainingError
from eagle3.pipeline.child import run_child
from eagle3.pipeline.plan import print_plan
from eagle3.pipeline.start import check_start


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    write_chat_model(folder / "model")
    write_conversations(folder / "chat.jsonl", 4)
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


@pytest.mark.parametrize(("code", "kind", "kept"), [(2, ConfigError, False), (1, TrainingError, True)])
def test_only_what_the_same_command_can_get_past_is_said_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Eagle3Error], kept: bool
) -> None:
    (tmp_path / "ends.py").write_text(f"import sys\nprint('error: no such thing')\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(kind) as raised:
        run_child("ends", {}, tmp_path, tmp_path / "log", Notes())
    assert ("the same command continues" in str(raised.value)) == kept
