"""What a stopped evaluation has measured is kept, and what is missing is measured: plan, file, and comparison."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.drafter.targets import make_target
from tests.evaluation.recorded_loads import ASKED, SETTING, loads
from tests.training.made import config_of

from eagle3.config import load
from eagle3.config.schema import DraftSetting, EvaluateConfig
from eagle3.errors import DataError
from eagle3.evaluation.figures import NONE, UNTRAINED, best_of, cells_of
from eagle3.evaluation.load import Load
from eagle3.evaluation.recorded import Wanted, missing, plan_of, read_loads, record
from eagle3.pipeline.stages import stages_of

OTHER = "s5k1d6"
EVALUATE = EvaluateConfig(
    drafts=[DraftSetting(), DraftSetting(5, 1, 6)], concurrency=[1, 4], temperatures=[0.0], rounds=2
)
PLAN = plan_of(EVALUATE)
ROOM = {"serving": {"max_total_tokens": 4096}}
"""For servers beside each other."""


def made(wanted: Wanted, seconds: float = 2.0) -> Load:
    """A load of 40 tokens."""
    (_, drafted) = loads([1.0])
    return Load(wanted.server, wanted.round, wanted.temperature, wanted.concurrency, seconds, drafted.replies)


def written(path: Path, some: list[Load]) -> Path:
    with path.open("ab") as file:
        for one in some:
            record(file, one)
    return path


def test_the_plan_is_round_by_round() -> None:
    in_turn = [(round_, name) for round_ in (0, 1) for name in (NONE, SETTING, OTHER)]
    assert [(wanted.round, wanted.server) for wanted in PLAN[:-1:2]] == in_turn
    assert PLAN[-1] == Wanted(0, UNTRAINED, 0.0, 4)
    assert len(PLAN) == 2 * 3 * 2 + 1


def test_servers_beside_each_other_take_turns_at_each_concurrency() -> None:
    """What is compared is then seconds apart, on a machine that others use as well."""
    plan = plan_of(dataclasses.replace(EVALUATE, beside=True))
    compared = [wanted.beside for wanted in plan[:-1]]
    assert compared == [(round_, 0.0, concurrency) for round_ in (0, 1) for concurrency in (1, 4) for _ in range(3)]
    assert [wanted.server for wanted in plan[:3]] == [NONE, SETTING, OTHER]
    assert sorted(plan) == sorted(PLAN)


@pytest.mark.parametrize("stopped", range(len(PLAN) + 1))
def test_only_what_is_missing_is_measured(stopped: int) -> None:
    """Stopped after any load."""
    kept = [made(wanted) for wanted in PLAN[:stopped]]
    left = missing(PLAN, kept)
    assert [wanted for wanted in left if wanted not in PLAN[:stopped]] == PLAN[stopped:]
    again = {wanted for wanted in left if wanted in PLAN[:stopped]}
    apart = {wanted.beside for wanted in PLAN[stopped:] if wanted.server != UNTRAINED}
    assert again == {wanted for wanted in PLAN[:stopped] if wanted.server == NONE and wanted.beside in apart}
    assert missing(PLAN, [*kept, *map(made, left)]) == []


def test_nothing_is_compared_across_a_stop() -> None:
    """After it the machine is four times as slow, for all servers; every speed-up is as if it had not been stopped."""
    fast = {NONE: 2.0, SETTING: 1.0, OTHER: 0.5, UNTRAINED: 4.0}
    for stopped in range(len(PLAN)):
        kept = [made(wanted, fast[wanted.server]) for wanted in PLAN[:stopped]]
        later = [made(wanted, 4 * fast[wanted.server]) for wanted in missing(PLAN, kept)]
        cells = cells_of([*kept, *later])
        assert {(cell.server, speed_up) for cell in cells for speed_up in cell.speed_ups} == {
            (NONE, 1.0),
            (SETTING, 2.0),
            (OTHER, 4.0),
        }
        assert len(best_of(cells, 0.0, 1).speed_ups) == 2


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    assert read_loads(tmp_path / "none.jsonl", PLAN, ASKED) == []
    two = [made(PLAN[0]), made(PLAN[1])]
    path = written(tmp_path / "loads.jsonl", two)
    whole = path.read_bytes()
    for cut in (1, 20, len(whole) // 2 - 1):
        path.write_bytes(whole[:-cut])
        assert read_loads(path, PLAN, ASKED) == two[:1]
        assert read_loads(written(path, two[1:]), PLAN, ASKED) == two, "the next one is not written behind the torn one"


def test_loads_of_another_evaluation_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "loads.jsonl", [made(PLAN[0]), made(Wanted(7, NONE, 0.0, 1))])
    with pytest.raises(DataError, match=r"(?s)loads\.jsonl: line 2 .*round=7.* not asked for.*Move the file away"):
        read_loads(path, PLAN, ASKED)
    with pytest.raises(DataError, match=r"line 1 .*other prompts"):
        read_loads(path, PLAN, ASKED[:1])
    path.write_text('{"server": "none"}\n')
    with pytest.raises(DataError, match=r"line 1 .*can't be read"):
        read_loads(path, PLAN, ASKED)


def test_a_digit_that_is_another_by_now_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path / "loads.jsonl", [made(PLAN[0]), made(PLAN[1])])
    path.write_bytes(path.read_bytes().replace(b'"seconds": 2.0', b'"seconds": 1.0', 1))
    with pytest.raises(DataError, match=r"line 1 .*was changed since"):
        read_loads(path, PLAN, ASKED)


def test_the_folder_is_of_one_configuration(tmp_path: Path) -> None:
    """Loads in it were measured by what would measure the rest."""
    target = make_target(tmp_path / "target")
    (tmp_path / "talks.jsonl").write_text('{"prompt": "a", "response": "b"}\n')

    def folder(server: dict[str, Any] | None = None, **evaluate: Any) -> Path:
        cfg = config_of(
            target={"name": "tiny", "path": str(target.path)},
            dataset={"path": str(tmp_path / "talks.jsonl")},
            layers={"boundaries": [2, 4, 5]},
            server={"device": "cuda", **(server or {"flags": ROOM})},
            paths={"artifacts": str(tmp_path / "artifacts")},
            evaluate={"kind": "served", **evaluate},
        )
        return stages_of(load(cfg), target).evaluate.folder

    own = folder()
    assert folder() == own
    asked: dict[str, Any]
    for asked in (
        {"prompts": ["chat"]},
        {"limit": 3},
        {"max_new_tokens": 9},
        {"drafts": [{"steps": 5, "topk": 1, "tokens": 6}]},
        {"concurrency": [2]},
        {"temperatures": [0.5]},
        {"rounds": 2},
        {"beside": True},
        {"untrained": False},
    ):
        assert folder(**asked) != own, asked
    for server in (
        {"tp": 2},
        {"flags": {"common": {"max_total_tokens": 5}}},
        {"env": {"A": "b"}},
    ):
        assert folder(server) != own, server
    awake = {"flags": {"serving": {**ROOM["serving"], "sleep_on_idle": False}}}
    assert folder(awake, beside=True) != folder(beside=True)
