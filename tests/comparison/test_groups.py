"""Runs that were measured in different ways: each way has a table and a best of its own, in every format."""

import csv
import io
import json
from pathlib import Path

import pytest
from tests.comparison.made_runs import Runs

from eagle3.comparison import compare, headline
from eagle3.comparison.page import page
from eagle3.comparison.plots import draw
from eagle3.comparison.publish import summary
from eagle3.comparison.render import csv_text, markdown, plain_text
from eagle3.comparison.table import Comparison
from eagle3.pipeline.sweep_table import SWEEP_FILE, Record, read_records, write_tables

CHAIN = {"kind": "chain", "prompts": ["held_out", "code"], "max_new_tokens": 64}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def mixed(runs: Runs) -> None:
    """Two drafters simulated, two by real drafts, one that has only been trained; the served target twice."""
    for lr in (0.1, 0.2):
        runs.add({"optim": {"lr": lr}}, [0.1 + lr, 0.1])
        runs.add({"optim": {"lr": lr}, "evaluate": CHAIN}, [0.8 - lr, 0.4], eval__kind="chain", eval__sequences=20)
    runs.add({"optim": {"lr": 0.3}, "until": "train"}, extract__tokens=100)
    for name in ("default", "ring_ll"):
        runs.add({"nccl": {"serving": {"name": name, "env": {}}}, "until": "bench"}, bench={"decode_1": len(name)})


def bests(found: Comparison) -> dict[str, str]:
    return {group.measured: group.best.label for group in found.evaluated if group.best is not None}


def test_each_way_of_measuring_has_a_best_and_none_is_named_across(runs: Runs) -> None:
    mixed(runs)
    found = compare([runs.at])
    assert bests(found) == {"simulated": "lr=0.2", "real drafts, no server": "lr=0.1"}
    assert [group.measured for group in found.groups][2:] == ["not evaluated", "the served target"]
    said = headline(found)
    assert said[0] == "Best: lr=0.2, accept length 1.330 (simulated, 2 drafted tokens)."
    assert said[2] == "Best: lr=0.1, accept length 1.980 (real drafts, no server, 2 drafted tokens)."
    assert said[3].startswith("Ahead of the next, lr=0.2, by +0.140")
    assert "(bootstrap of 20 prompts)" in said[3]
    assert "not compared: each way has a best of its own" in said[4]
    assert not [line for line in said if "can't be compared" in line]


def test_all_formats_say_the_same(runs: Runs) -> None:
    mixed(runs)
    found = compare([runs.at])
    text, written, html = plain_text(found), markdown(found), page(found)
    for group in found.drafters:
        assert group.measured in text
        assert f"{group.measured}\n\n| " in written
        assert f"<h2>{group.measured.capitalize()}</h2>" in html
        for row in group.rows():
            for cell in row:
                assert cell in text
                assert cell in written
                assert cell in html
    assert html.count('class="best"') == 2 + 1, "of two groups of drafters, and of the served target"
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert [(row["measured"], row["lr"], row["behind_best"]) for row in rows[:5:2]] == [
        ("simulated", "0.2", "0.0"),
        ("real drafts, no server", "0.1", "0.0"),
        ("not evaluated", "0.3", ""),
    ]
    assert {row["measured"] for row in rows[5:]} == {"the served target"}
    told = summary(found)
    assert (told["compare/simulated/best"], told["compare/chain/best"]) == ("lr=0.2", "lr=0.1")
    assert told["compare/chain/exceeds_noise"] is True
    assert "compare/best" not in told
    assert told["compare/best_decode_1"] == "nccl.serving=default"
    assert {"accept_length_simulated", "accept_length_chain", "served"} <= set(draw(found))


def test_a_sweeps_table_ranks_each_way_by_itself(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    mixed(runs)
    jobs = [[f"job={number}"] for number in range(runs.count)]
    for number, overrides in enumerate(jobs):
        Record(number, overrides).end(runs.at / str(number), "done", 1.0)
    (runs.at / SWEEP_FILE).write_text(json.dumps({"jobs": jobs}))
    write_tables(runs.at, read_records(runs.at), compare([runs.at]).rankings)
    for text in (capsys.readouterr().out, (runs.at / "sweep.md").read_text()):
        assert text.count("by accept length") == 2
        assert "by accept length (simulated)" in text
        assert "by accept length (real drafts, no server)" in text
        assert "by serving: decode 1, tokens/s" in text


def test_what_makes_it_another_way(runs: Runs) -> None:
    """Named by what differs; the dataset that a drafter was trained on does not matter where others were asked."""
    chain = {"eval__kind": "chain", "eval__sequences": 20}
    runs.add({"optim": {"lr": 1}, "evaluate": CHAIN}, [0.5], **chain)
    runs.add({"optim": {"lr": 2}, "evaluate": CHAIN, "dataset": {"limit": 9}}, [0.5], dataset="fedcba98", **chain)
    runs.add({"evaluate": CHAIN | {"max_new_tokens": 8}}, [0.5], **chain)
    runs.add({"evaluate": CHAIN | {"prompts": ["chat"]}}, [0.5], asked=7, **chain)
    runs.add({"evaluate": CHAIN}, [0.5, 0.5], **chain)
    runs.add({"evaluate": CHAIN}, [0.5], asked=8, **chain)
    found = compare([runs.at])
    assert [len(group.variants) for group in found.groups] == [2, 1, 1, 1, 1]
    names = [group.measured for group in found.groups]
    told = ["real drafts, no server", "20 prompts of held_out, code", "1 draft a pass", "answers of up to 64 tokens"]
    assert names[0] == ", ".join(told)
    assert "20 prompts of chat" in names[2]
    assert "2 drafts a pass" in names[3]
    assert names[4] == f"{names[0]} (2)"
    assert found.groups[0].settings == ["dataset", "lr"]
    assert "nothing else here was measured so" in " ".join(headline(found))


def test_other_conversations_or_another_split_are_another_way(runs: Runs) -> None:
    runs.add({"optim": {"lr": 1}}, [0.5])
    runs.add({"optim": {"lr": 2}}, [0.5], dataset="fedcba9876")
    runs.add({"optim": {"lr": 3}}, [0.5], asked=5)
    runs.add({"optim": {"lr": 4}}, [0.5], target="other")
    found = compare([runs.at])
    assert len(found.groups) == 4
    assert "dataset jsonl fedcba98" in found.groups[1].measured
    assert "target None other" in found.groups[3].measured
    assert len({group.measured for group in found.groups}) == 4


def test_where_and_sort_reach_every_table(runs: Runs) -> None:
    mixed(runs)

    def order(*where: str, key: str | None = None) -> list[list[str]]:
        return [[v.label for v in group.variants] for group in compare([runs.at], where, key).drafters]

    assert order(key="lr") == [["lr=0.1", "lr=0.2"], ["lr=0.1", "lr=0.2"], ["lr=0.3"]]
    assert order("evaluate.kind=chain") == [["lr=0.1", "lr=0.2"]]
    assert order("accept_length<1.9", "until!=train")[0] == ["lr=0.2", "lr=0.1"]
    assert order(key="dataset_tokens") == [["lr=0.2", "lr=0.1"], ["lr=0.1", "lr=0.2"], ["lr=0.3"]]


def test_what_was_not_evaluated_is_told_by_where_it_ended(runs: Runs) -> None:
    """Also where its evaluation, which was never made, would be that of another row."""
    runs.add({"until": "report"}, [0.5], "evaluate/shared")
    for until in ("prepare", "train"):
        folder = runs.add({"until": until, "optim": {"lr": 1}})
        made = json.loads((folder / "provenance.json").read_text())
        made["artifacts"] = {"evaluate": "evaluate/shared", "prepare": "prepare/0", "train": "train/0"}
        (folder / "provenance.json").write_text(json.dumps(made))
    found = compare([runs.at])
    assert [v.label for v in found.drafters[1].variants] == ["until=prepare", "until=train"]
    assert "Nothing" not in " ".join(headline(found))
    assert headline(compare([runs.at / "1"]))[0] == "Nothing here was evaluated, so there is no best drafter."


def test_a_row_by_itself_is_no_best_and_blanks_are_no_name(runs: Runs) -> None:
    for lr in (1, 2):
        runs.add({"optim": {"lr": lr}}, [0.5])
    given = {"evaluate": {**CHAIN, "drafter": "/some/where/else"}}
    runs.add(given, [0.5], eval__kind="chain")
    (alone,) = compare([runs.at]).groups[1:]
    assert (alone.settings, alone.variants[0].label) == (["drafter"], "drafter=.../where/else")
    assert "behind the best" not in alone.headings()


def test_each_table_of_the_page_sorts_by_its_own_columns(runs: Runs) -> None:
    mixed(runs)
    assert "at = head.cellIndex" in page(compare([runs.at]))


def test_profiles_are_not_compared_where_nccl_did_nothing(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU, or one GPU: a single round under each is a round of one configuration, and none is the highest."""
    names = ("default", "ring_ll", "tree")
    for name, rate in zip(names, (100.0, 104.0, 102.0), strict=True):
        serving = {"name": name, "env": {"NCCL_PROTO": name}}
        config = {"until": "bench", "nccl": {"serving": serving}, "bench": {"round": 0}}
        runs.add(config, bench={"decode_1": rate}, nccl_unused=True)
    jobs = [[f"nccl@nccl.serving={name}"] for name in names]
    (runs.at / SWEEP_FILE).write_text(json.dumps({"jobs": jobs}))
    for number, overrides in enumerate(jobs):
        Record(number, overrides).end(runs.at / str(number), "done", 1.0)
    found = compare([runs.at])
    said = headline(found)
    assert said[0] == "Serving: decode 1, tokens/s: 3 runs 102.0 ± 2.0."
    assert said[1].startswith("NCCL was not used (one GPU, or a CPU), so its profiles changed nothing and are not comp")
    assert "compared: default, ring_ll, tree. What was measured under them counts as rounds" in said[1]
    assert "highest" not in " ".join([*said, plain_text(found), markdown(found), page(found)])
    write_tables(runs.at, read_records(runs.at), found.rankings)
    table = (runs.at / "sweep.md").read_text()
    assert "job 0 to 2: NCCL was not used (one GPU, or a CPU): its profile changed nothing" in table
    assert "by serving" not in table
    assert "not used" in capsys.readouterr().out
    (only,) = compare([runs.at], ["nccl.serving=ring_ll"]).served
    assert only.label == "nccl@nccl.serving=ring_ll"


def test_profiles_are_told_apart_where_nccl_was_used(runs: Runs) -> None:
    """Beside rows of one GPU, for which they mean nothing."""
    for tp, name, rate in ((1, "default", 100.0), (1, "ring_ll", 101.0), (2, "default", 150.0), (2, "ring_ll", 160.0)):
        config = {"until": "bench", "server": {"tp": tp}, "nccl": {"serving": {"name": name, "env": {}}}}
        runs.add(config, bench={"decode_1": rate}, nccl_unused=tp == 1)
    found = compare([runs.at])
    assert [variant.setting for variant in found.served] == [
        {"tp": "1", "nccl.serving": ""},
        {"tp": "2", "nccl.serving": "default"},
        {"tp": "2", "nccl.serving": "ring_ll"},
    ]
    assert headline(found)[0].startswith("Serving: decode 1, tokens/s: tp=2, nccl.serving=ring_ll 160.0, highest;")


def test_a_chain_that_found_something_else_than_the_server_is_named(runs: Runs) -> None:
    """Served with another drafter, most likely: its figures are of nothing that can be trusted."""
    for lr, served in ((0.1, 1.42), (0.2, 1.2)):
        figures = {"eval__followed__served_accept_length": served, "eval__followed__same_passes": 3}
        config = {"optim": {"lr": lr}, "evaluate": CHAIN}
        runs.add(config, [0.3, 0.4], eval__kind="chain", eval__sequences=20, **figures)
    (warning,) = [line for line in headline(compare([runs.at])) if "WARNING" in line]
    assert warning.startswith(
        "lr=0.2: WARNING: on the served answers, accept length 1.420, the server's 1.200; 3 of 20"
    )
