"""`evaluate=chain` from a job: prepared conversations, shipped prompts, a drafter of ours and one of others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.foreign import as_others
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.training.made import config_of

from eagle3.config import load
from eagle3.data.prepare import run_prepare
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.evaluation.main import main
from eagle3.evaluation.prompts import load_prompts
from eagle3.metrics import JsonlReporter
from eagle3.target.info import read_info

BOUNDARIES = [2, 3, 4]
"""What SGLang takes for a 7-layer target; of 6 layers, some that are named."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, prompts/ (prepared), drafter/."""
    folder = tmp_path_factory.mktemp("chain")
    write_chat_model(folder / "model")
    write_conversations(folder / "talks.jsonl", 30)
    cfg = load(config(folder))
    info = read_info(folder / "model")
    (folder / "prompts").mkdir()
    run_prepare(cfg, info, folder / "prompts", JsonlReporter(folder / "prepare.jsonl"), folder / "logs")
    shape = DrafterShape.build(cfg.drafter, info, len(BOUNDARIES))
    export_drafter(Drafter(shape), torch.arange(32), BOUNDARIES, info, folder / "drafter", "0.5.23")
    return folder


def config(folder: Path, **evaluate: Any) -> dict[str, Any]:
    return config_of(
        target={"name": "tiny", "path": str(folder / "model")},
        dataset={"name": "talks", "path": str(folder / "talks.jsonl"), "held_out": 0.3},
        layers={"boundaries": BOUNDARIES},
        server={"device": "cpu"},
        evaluate={"kind": "chain", "prompts": ["held_out", "code"], "limit": 3, "max_new_tokens": 12, **evaluate},
    )


def evaluate(folder: Path, out: str, measured: Path, **changes: Any) -> dict[str, Any]:
    (folder / out).mkdir()
    job = {
        "config": config(folder, **changes),
        "dataset": str(folder / "no-states"),
        "prompts": str(folder / "prompts"),
        "target": str(folder / "model"),
        "text_prefix": "",
        "boundaries": BOUNDARIES,
        "out": str(folder / out),
        "drafter": str(measured),
    }
    (folder / out / "job.json").write_text(json.dumps(job))
    assert main([str(folder / out / "job.json")]) == 0
    return json.loads((folder / out / "summary.json").read_text())


def test_ours(made: Path) -> None:
    found = evaluate(made, "ours", made / "drafter", drafts=[{"steps": 2, "topk": 1, "tokens": 3}])
    assert found["eval/kind"] == "chain"
    assert found["eval/sequences"] == 6
    assert found["eval/accept_length"] == pytest.approx(1, abs=0.5), "it is random"
    assert {"eval/held_out/accept_length", "eval/code/accept_length", "eval/untrained/accept_length"} <= found.keys()
    assert {"eval/cond_acc_step_0", "eval/cond_acc_step_1"} <= found.keys()
    rows = [json.loads(line) for line in (made / "ours" / "chains.jsonl").read_text().splitlines()]
    assert [row["set"] for row in rows] == ["held_out"] * 3 + ["code"] * 3
    assert all(len(row["output_ids"]) <= 12 for row in rows)
    assert all(len(round_["drafts"]) == 2 for row in rows for round_ in row["rounds"])


def test_one_that_was_made_by_others(made: Path) -> None:
    folder = made / "theirs"
    shape = DrafterShape.build(load(config(made)).drafter, read_info(made / "model"), len(BOUNDARIES))
    export_drafter(Drafter(shape), torch.arange(32), BOUNDARIES, read_info(made / "model"), folder, "0.5.23")
    as_others(folder)
    found = evaluate(made, "eval-theirs", folder, drafter=str(folder))
    assert found["eval/rounds"] > 0
    assert "eval/untrained/accept_length" not in found


def test_nothing_is_asked_that_was_trained_on(made: Path, tmp_path: Path) -> None:
    talks = [json.loads(line)["messages"] for line in (made / "talks.jsonl").read_text().splitlines()]
    asked = tmp_path / "mine.jsonl"
    asked.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in talks if len(messages) == 2))
    cfg = load(config(made, prompts=["held_out", str(asked)], limit=100))
    reporter = JsonlReporter(tmp_path / "said.jsonl")
    sets = load_prompts(cfg, read_info(made / "model"), made / "prompts", reporter)
    held_out = {tuple(p.input_ids) for p in sets.prompts if p.set == "held_out"}
    mine = {tuple(p.input_ids) for p in sets.prompts if p.set == "mine"}
    assert sets.trained_on > 0
    assert mine
    assert mine <= held_out
