"""Which keys of a configuration are shown: those that the measurement depends on, with the values that held."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.comparison.made_runs import Runs
from tests.pipeline.test_evaluated import config, keys, read

from eagle3.comparison import compare
from eagle3.comparison.effective import GIVEN, effective
from eagle3.comparison.grouping import variants_of
from eagle3.comparison.runs import Run
from eagle3.config.differences import flat
from eagle3.config.schema import BenchConfig

KNOWN = {"target.path", "target.name", "dataset.path", "dataset.name", "layers.boundaries", "nccl.serving.name"}
"""Shown by name and content; boundaries are those of the drafter that was measured; a profile is its variables."""
NOT_SHOWN = {
    *("server.python", GIVEN),  # of which the content names an evaluation
    *("target.trust_remote_code", "seed"),
    *("loss.kind", "loss.step_decay", "trainer.tokens_per_batch", "trainer.accelerator"),
}
"""Of a drafter that was given these name its evaluation, because of the loss, or the last bits of it."""


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["simulated", "chain", "served"])
def test_what_names_an_evaluation_is_shown_and_nothing_else(tmp_path: Path, kind: str, given: bool) -> None:
    """How it was measured aside, which names its group."""
    cfg = config(tmp_path, kind, given)
    leaves = dict(flat(dataclasses.asdict(cfg)))
    summary: dict[str, Any] = {"eval/kind": kind, "eval/cond_acc_step_0": 0.5, "boundaries": "2,4,5"}
    shown = set(effective(Run(tmp_path, leaves, summary, {}, None)))
    every = [key for key in keys(cfg) if not key.startswith("evaluate.") and key not in KNOWN | NOT_SHOWN]
    assert len(every) > 90

    def has(key: str) -> bool:
        return any(one == key or one.startswith(f"{key}.") for one in shown)

    assert {key for key in every if has(key)} == {key for key in every if read(kind, given, key)}
    assert {"target.name", "dataset.name", GIVEN} <= shown
    assert given != ("optim.lr" in shown)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "runs")


def settings(runs: Runs) -> list[dict[str, str]]:
    return [variant.setting for group in compare([runs.at]).groups for variant in group.variants]


def test_training_keys_of_a_drafter_that_was_given_are_blank(runs: Runs) -> None:
    for lr in (0.1, 0.2):
        runs.add({"optim": {"lr": lr}, "loss": {"ttt_steps": 1, "kind": "ce"}, "evaluate": {"drafter": None}}, [lr])
    for lr, name in ((0.3, "a"), (0.4, "b")):
        theirs = {"evaluate": {"drafter": f"/some/where/{name}"}, "loss": {"ttt_steps": 1, "kind": "lk"}}
        runs.add({"optim": {"lr": lr}, **theirs}, [lr])
    assert settings(runs) == [
        {"drafter": ".../where/b", "lr": ""},
        {"drafter": ".../where/a", "lr": ""},
        {"drafter": "trained here", "lr": "0.2"},
        {"drafter": "trained here", "lr": "0.1"},
    ]


def test_the_served_targets_rows_show_what_the_server_was(runs: Runs) -> None:
    for port, lr, tp in ((1, 0.1, 1), (2, 0.2, 2)):
        flags = {"serving": {"watch": tp}, "extraction": {"chunked": port}}
        config = {"server": {"tp": tp, "port": port, "concurrency": port, "flags": flags}, "optim": {"lr": lr}}
        runs.add({**config, "until": "bench", "evaluate": {"rounds": tp}}, bench={"decode_1": 1.0 * tp})
    assert settings(runs) == [{"tp": "1", "watch": "1"}, {"tp": "2", "watch": "2"}]
    assert {"prompt_tokens", "decode_tokens"} <= {field.name for field in dataclasses.fields(BenchConfig)}
    runs.add({"bench": {"decode_tokens": 7}, "until": "bench"}, bench={"decode_1": 9.0})
    assert len(compare([runs.at]).groups) == 2, "other loads are another way of measuring"


def test_a_default_is_the_same_as_its_value_written_out(runs: Runs) -> None:
    for seed, (boundaries, width) in enumerate(((None, None), ([1, 2, 3], 64))):
        config = {"seed": seed, "layers": {"boundaries": boundaries}, "drafter": {"hidden_size": width}}
        folder = runs.add(config, [0.5], boundaries="1,2,3")
        (folder / "drafter").mkdir()
        (folder / "drafter" / "config.json").write_text(json.dumps({"hidden_size": 64}))
    found = compare([runs.at])
    assert [len(variant.distinct) for variant in found.variants] == [2]
    assert found.variants[0].setting == {}
    assert len(compare([runs.at], ["boundaries=[1,2,3]", "hidden_size=64"]).all_runs) == 2
    runs.add({"layers": {"boundaries": [1, 2, 4]}, "drafter": {"hidden_size": 64}}, [0.5], boundaries="1,2,4")
    assert settings(runs) == [{"boundaries": "[1,2,3]"}, {"boundaries": "[1,2,4]"}]


def test_of_imported_states_only_their_name_is_shown(tmp_path: Path) -> None:
    """And of a run that stopped early, what it had made."""

    def run(limit: int, until: str, **artifacts: str) -> Run:
        config = {"until": until, "dataset.name": "mine", "dataset.limit": limit, "server.tp": limit, "optim.lr": limit}
        config |= {"layers.boundaries": [1], "layers.capture": None if limit == 1 else [1, 2]}
        return Run(tmp_path / str(limit), config, {}, {"artifacts": artifacts}, None)

    for until, there in (
        ("prepare", ["limit"]),
        ("extract", ["capture", "limit", "tp"]),
        ("train", ["limit", "tp", "lr"]),
    ):
        (one, _) = variants_of([run(limit, until) for limit in (1, 2)])
        assert list(one.setting) == there
    (one, _) = variants_of([run(limit, "train", prepare="/states", extract="/states") for limit in (1, 2)])
    assert list(one.setting) == ["lr"]
