"""What is made of recorded loads: acceptance, spread, break-even, and a page that says the worst first."""

import dataclasses
import json
from pathlib import Path

import pytest
from tests.evaluation.recorded_loads import SETTING, loads

from eagle3.config.schema import (
    Config,
    DatasetConfig,
    DraftSetting,
    EvaluateConfig,
    ServerConfig,
    ServerFlags,
    TargetConfig,
)
from eagle3.errors import DataError, ServerError
from eagle3.evaluation.figures import NONE, best_of, cells_of, counts_of_best, so_far, summary_of
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.prompts import Prompt, ids_of, until_end
from eagle3.evaluation.sameness import Difference, Explained, differences
from eagle3.evaluation.sequences import accept_length
from eagle3.evaluation.served import served_command
from eagle3.evaluation.served_page import page
from eagle3.evaluation.servers import require_captured

NOISY = loads([0.9, 0.8, 0.7])


def summary(speed_ups: list[float]) -> dict[str, object]:
    cells = cells_of(loads(speed_ups))
    more = {
        "eval/sequences": 2,
        "eval/greedy_differences": 0,
        "eval/greedy_differences_without": 0,
        "eval/boundaries_read_back": "2,4,5",
    }
    return summary_of(cells) | more


def test_noise_is_said() -> None:
    """A machine that is not quiet, and rounds that do not agree."""
    slow = [dataclasses.replace(load, seconds=load.seconds * 1.5) if load.round == 1 else load for load in NOISY]
    quiet, noisy = (page(cells_of(given), summary([0.9, 0.8, 0.7]), []) for given in (NOISY, slow))
    assert "varied" not in quiet
    assert "agree" not in quiet
    assert noisy.split("\n\n")[1] == (
        "The rate without speculation itself varied by 33% between rounds (13.3 to 20.0 tokens/s at concurrency 1, "
        "temperature 0): the machine is not quiet."
    )
    torn = page(cells_of(loads([0.9, 1.2])), summary([0.9, 1.2]), [])
    assert torn.split("\n\n")[1] == "The rounds do not agree whether it is faster."


def test_acceptance_is_counted_by_position() -> None:
    cell = best_of(cells_of(loads([1.5])), 0.0, 1)
    # Histograms 2 2 1 3 and 6 1 1 0: of 16 passes, 8 accepted the first draft, 5 the second, 3 the third.
    assert cell.by_position == [8 / 16, 5 / 16, 3 / 16]
    assert cell.conditional == [8 / 16, 5 / 8, 3 / 5]
    assert cell.accept_length == 1 + 16 / 16
    assert cell.by_set == {"chat": 1 + 13 / 8, "code": 1 + 3 / 8}


def test_each_prompt_set_has_a_speed_up_of_its_own() -> None:
    """From the time of each answer, so of one request at a time alone: else answers share it."""
    found = loads([1.5, 1.2])
    cell = best_of(cells_of(found), 0.0, 1)
    # Alone, an answer to `chat` took 1 s with and without drafts, one to `code` 3 s without and 1 s with them.
    assert cell.by_set_speed_ups == {"chat": [1, 1], "code": [3, 3]}
    made = summary_of(cells_of(found))
    assert [made[f"serve/code/{name}"] for name in ("speedup", "speedup_min", "speedup_max")] == [3, 3, 3]
    shown = page(cells_of(found), summary([1.5, 1.2]), [])
    assert "| code | **s3k1d4** | 1.38 | 3.00 (3.00 to 3.00) |" in shown
    many = [dataclasses.replace(load, concurrency=4) for load in found]
    assert best_of(cells_of(many), 0.0, 4).by_set_speed_ups == {}
    assert "| code | **s3k1d4** | 1.38 |" in page(cells_of(many), summary([1.5, 1.2]), [])


def test_what_comes_after_the_end_is_no_answer() -> None:
    """SGLang 0.5.17 leaves it there where one pass reaches both the end and the longest length."""
    assert until_end([5, 6, 2, 198], [2, 0]) == [5, 6, 2]
    assert until_end([5, 6], [2]) == [5, 6]
    assert until_end([], [2]) == []


def test_the_accept_length_has_a_spread_over_prompts() -> None:
    """Of the setting and load of the headline, over all rounds; its figures are those of the sums."""
    found = loads([1.5, 1.2])
    more = [
        dataclasses.replace(load, server="s3k1d5", seconds=load.seconds * 2) for load in found if load.server != NONE
    ]
    cells, prompts = cells_of([*found, *more]), [Prompt("chat", "a", [1, 2]), Prompt("code", "b", [3])]
    counts = counts_of_best(cells, [*found, *more], prompts)
    assert counts is not None
    assert counts.reached.tolist() == [[16, 12, 8], [16, 4, 2]]
    assert counts.accepted.tolist() == [[12, 8, 6], [4, 2, 0]]
    best = best_of(cells, 0.0, 1)
    assert counts.conditional.tolist() == best.conditional
    assert float(accept_length(counts.conditional)) == pytest.approx(best.accept_length)
    spread = counts.metrics("eval")["eval/accept_length_spread"]
    # Two prompts of 2.625 and 1.375: half of the draws have both, a quarter each has one twice.
    assert spread == pytest.approx(1.25 / 8**0.5, rel=0.1)
    assert f"Accept length 2.00 ± {spread:.2f}; it" in page(cells, summary([1.5]) | counts.metrics("eval"), [])
    assert counts.ids.tolist() == ids_of(prompts).tolist()
    bare = [
        dataclasses.replace(load, replies=[dataclasses.replace(r, histogram=[]) for r in load.replies])
        for load in found
    ]
    assert counts_of_best(cells_of(bare), bare, prompts) is None


def test_drafts_that_were_never_accepted_are_shown() -> None:
    """A server's histogram ends with the longest that was."""
    found = loads([1.5])
    short = [
        dataclasses.replace(load, replies=[dataclasses.replace(r, histogram=r.histogram[:2]) for r in load.replies])
        for load in found
    ]
    cell = best_of(cells_of(short), 0.0, 1)
    assert cell.by_position == [3 / 11, 0, 0]
    assert cell.conditional == [3 / 11, 0, 0]
    assert next(c for c in cells_of(short) if c.server == NONE).conditional == []


def test_speed_up_is_against_the_same_round() -> None:
    found = loads([1.5, 1.1, 1.3])
    slow = [dataclasses.replace(load, seconds=load.seconds * 10) if load.round == 1 else load for load in found]
    for given in (found, slow):  # a slow minute meets both servers
        cell = best_of(cells_of(given), 0.0, 1)
        assert cell.speed_up == pytest.approx(1.3)
        assert (min(cell.speed_ups), max(cell.speed_ups)) == pytest.approx((1.1, 1.5))
    assert cell.break_even == pytest.approx(2.0 / 1.3)


def test_a_server_without_histograms_counts_tokens_a_pass() -> None:
    found = [
        dataclasses.replace(load, replies=[dataclasses.replace(r, histogram=[]) for r in load.replies])
        for load in loads([1.5])
    ]
    assert best_of(cells_of(found), 0.0, 1).accept_length == pytest.approx((19 + 19) / 16)


def test_a_round_without_its_own_measure_of_none_is_refused() -> None:
    with pytest.raises(DataError, match="round 1 of s3k1d4"):
        cells_of(load for load in loads([1.5, 1.4]) if (load.server, load.round) != (NONE, 1))


def test_summary_names_the_best_setting() -> None:
    found = loads([1.2])
    better = [
        dataclasses.replace(load, server="s5k1d6", seconds=load.seconds / 2) for load in found if load.server != NONE
    ]
    made = summary_of(cells_of([*found, *better]))
    assert made["serve/best"] == "s5k1d6"
    assert made["serve/speedup"] == pytest.approx(2.4)
    assert made["serve/s3k1d4/t0/c1/speedup"] == pytest.approx(1.2)
    assert made["serve/tokens_per_s_without"] == pytest.approx(20)
    assert made["serve/none/t0/c1/latency_p50_s"] == pytest.approx(2.0)
    json.dumps(made, allow_nan=False)


def test_a_loss_is_said_first() -> None:
    slower = page(cells_of(loads([0.7, 0.6])), summary([0.7, 0.6]), [])
    assert slower.startswith("**Slower than no speculation: 0.65x (0.60 to 0.70 over 2 rounds)**")
    faster = page(cells_of(loads([1.7])), summary([1.7]), [])
    assert faster.startswith("**1.70x (1.70 to 1.70 over 1 rounds) the tokens/s")
    assert "Greedy answers equal those without speculation, all 2" in faster
    assert "breaks even at 1.18" in faster


def test_a_measure_that_flatters_is_said() -> None:
    """Random weights guess one token in thousands: what accepts them accepts anything."""
    cells, made = cells_of(loads([1.7])), summary([1.7])
    honest = page(cells, made | {"eval/untrained/accept_length": 1.004}, [])
    assert "The same drafter with random weights: accept length 1.00." in honest
    assert "do not believe" not in honest
    flattered = page(cells, made | {"eval/untrained/accept_length": 1.6}, []).split("\n\n")
    assert flattered[1].startswith("**A drafter of random weights has accept length 1.60 here, and should have 1.0**")


def test_a_setting_that_failed_is_named_after_the_figure() -> None:
    """Whatever else was measured stays, and what was measured of it before it died."""
    failed = {
        "serve/failed": "s5k1d6, s3k1d4",
        "serve/s5k1d6/failure": "the server ended with code 3. Log: a.log (no such drafter)",
        "serve/s3k1d4/failure": "the server was killed by SIGKILL",
    }
    parts = page(cells_of(loads([1.7, 1.6])), summary([1.7, 1.6]) | failed, []).split("\n\n")
    assert parts[0].startswith("**1.65x")
    assert parts[1].splitlines() == [
        "**Not measured, or not to the end: s5k1d6, s3k1d4.** The same command tries them again.",
        "- s5k1d6: the server ended with code 3. Log: a.log (no such drafter).",
        "- s3k1d4: the server was killed by SIGKILL. Its figures are those of 2 rounds, from before.",
    ]


def test_the_speed_up_has_one_name_from_evaluation_to_comparison() -> None:
    """What the summary calls it is what the model card and `eagle3 compare` look for."""
    from eagle3.commands.card import _FIGURES
    from eagle3.comparison.columns import _FURTHER

    made = summary_of(cells_of(loads([1.2])))
    (compared,) = [name for key, _, name, *_ in _FURTHER if key == "speedup"]
    assert compared == "serve/speedup"
    assert made[compared] == pytest.approx(1.2)
    on_the_card = {name for name, *_ in _FIGURES if name.startswith("serve/")}
    assert "serve/speedup" in on_the_card
    assert on_the_card <= made.keys()


def test_answers_that_are_not_the_targets_own() -> None:
    other = [*range(200, 207), 9, *range(208, 220)]
    own, drafted = loads([1.5], other=other)
    (found,) = differences(own, drafted)
    assert (found.key, found.position, found.own, found.other) == ("b", 7, 207, 9)
    assert differences(own, own) == []
    for gap, tie in ((0.1, True), (-0.1, True), (0.3, False), (-0.3, False), (None, False)):
        assert Explained(found, gap).is_tie == tie
    cells, made = cells_of(loads([1.5])), summary([1.5])
    assert "1 greedy answers are not the target's own" in page(cells, made, [Explained(found, 2.0)])
    tied = page(cells, made, [Explained(found, 0.1)])
    assert "no tie explains" not in tied
    assert "in 1 of them at a tie" in tied


def test_one_that_ends_earlier() -> None:
    short = Load("x", 0, 0.0, 1, 1.0, [Reply("chat", "a", "0", [1, 2], 1.0, 0, [])])
    long = Load("y", 0, 0.0, 1, 1.0, [Reply("chat", "a", "0", [1, 2, 3], 1.0, 0, [])])
    assert differences(short, long) == [Difference("y", "chat", "a", 2, -1, -1)]


def test_loads_are_read_back() -> None:
    for load in loads([1.5]):
        assert Load.of(json.loads(json.dumps(dataclasses.asdict(load)))) == load


def cuda_config(*, beside: bool = False, **flags: bool) -> Config:
    return Config(
        name="t",
        target=TargetConfig("t", "some/model"),
        dataset=DatasetConfig("d", "d.jsonl"),
        server=ServerConfig(device="cuda", flags=ServerFlags(common={**flags})),
        evaluate=EvaluateConfig(kind="served", beside=beside),
    )


def test_both_servers_have_the_same_flags_but_for_the_drafts(tmp_path: Path) -> None:
    plain = served_command(cuda_config(), Path("M"), Path("D"), None, tmp_path)
    drafted = served_command(cuda_config(), Path("M"), Path("D"), DraftSetting(4, 4, 16), tmp_path)
    more = {name: value for name, value in drafted.flags.items() if name not in plain.flags}
    assert more == {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "D",
        "speculative_num_steps": 4,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 16,
    }
    assert {**drafted.flags} == {**plain.flags, **more}
    assert drafted.added_env == plain.added_env
    assert not any("graph" in flag for flag in drafted.flags), "CUDA graphs stay on"


def test_servers_beside_each_other_sleep_while_they_wait(tmp_path: Path) -> None:
    """An idle scheduler keeps a core busy, and takes from the server that is measured."""

    def sleeping(cfg: Config) -> list[bool]:
        commands = [served_command(cfg, Path("M"), Path("D"), draft, tmp_path) for draft in (None, DraftSetting())]
        return ["--sleep-on-idle" in command.argv for command in commands]

    assert sleeping(cuda_config(beside=True)) == [True, True]
    assert sleeping(cuda_config()) == [False, False], "one server at a time has the machine for itself"
    assert sleeping(cuda_config(beside=True, sleep_on_idle=False)) == [False, False], "asked for"


def test_other_boundaries_than_trained_on_fail_loudly(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="did not report"):
        require_captured(tmp_path, [2, 4, 5], SETTING)
    report = {"boundaries": [2, 4, 5], "model": "LlamaForCausalLM", "sglang_version": "0.5.23"}
    (tmp_path / "capture-1.json").write_text(json.dumps(report))
    require_captured(tmp_path, [2, 4, 5], SETTING)
    (tmp_path / "capture-2.json").write_text(json.dumps(report | {"boundaries": [3, 5, 6]}))
    with pytest.raises(ServerError, match=r"captures boundaries \[3, 5, 6\] .* trained on \[2, 4, 5\].*eagle3 export"):
        require_captured(tmp_path, [2, 4, 5], SETTING)
    (tmp_path / "capture-2.json").write_text(json.dumps({"error": "no"}))
    with pytest.raises(ServerError, match="can't be read: no"):
        require_captured(tmp_path, [2, 4, 5], SETTING)


def test_what_a_stopped_evaluation_has_found_is_told() -> None:
    assert so_far([]) is None
    assert so_far(loads([1.5])[:1]) is None, "nothing was drafted yet"
    found = so_far(loads([1.5, 1.25])[:3])
    assert found == "so far, 1 at a time at temperature 0: s3k1d4 1.50x with accept length 2.00 (1 round)"
    assert "s3k1d4 1.38x" in str(so_far(loads([1.5, 1.25])))
