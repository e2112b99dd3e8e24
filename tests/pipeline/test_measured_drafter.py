"""`evaluate.drafter`: which stages are left, and what makes an evaluation another one."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.drafter.foreign import as_others, make_ours
from tests.drafter.targets import make_target
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.training.made import config_of

from eagle3.config import PROJECT, load
from eagle3.config.schema import Config, DrafterConfig
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.pipeline.stages import stages_of, wanted_artifacts
from eagle3.target.info import TargetInfo, read_info


@pytest.fixture
def target(tmp_path: Path) -> TargetInfo:
    target = make_target(tmp_path / "target")
    shape = DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3)
    export_drafter(Drafter(shape), torch.arange(48), [2, 4, 5], target, tmp_path / "drafter", "0.5.23")
    (tmp_path / "talks.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    return target


def config(folder: Path, **evaluate: object) -> Config:
    return load(
        config_of(
            target={"name": "tiny", "path": str(folder / "target")},
            dataset={"path": str(folder / "talks.jsonl")},
            layers={"boundaries": [2, 4, 5]},
            server={"device": "cpu"},
            paths={"artifacts": str(folder / "artifacts")},
            evaluate=evaluate,
        )
    )


@pytest.mark.parametrize(
    ("kind", "stages"),
    [("simulated", ["prepare", "extract", "evaluate"]), ("chain", ["prepare", "evaluate"])],
)
def test_nothing_is_made_that_is_not_needed(tmp_path: Path, target: TargetInfo, kind: str, stages: list[str]) -> None:
    given = config(tmp_path, kind=kind, drafter=str(tmp_path / "drafter"))
    assert [artifact.stage for artifact in wanted_artifacts(given, target)] == stages
    own = config(tmp_path, kind=kind)
    assert [artifact.stage for artifact in wanted_artifacts(own, target)] == ["prepare", "extract", "train", "evaluate"]


def test_what_makes_it_another_evaluation(tmp_path: Path, target: TargetInfo) -> None:
    def folder(**evaluate: object) -> Path:
        return stages_of(config(tmp_path, **evaluate), read_info(target.path)).evaluate.folder

    own, drafter = folder(), str(tmp_path / "drafter")
    assert folder(max_new_tokens=7, concurrency=[2]) == own, "the simulation asks nothing"
    assert folder(untrained=False) != own
    chain = folder(kind="chain")
    assert len({own, chain, folder(kind="chain", limit=3), folder(kind="chain", prompts=["code"])}) == 4
    assert folder(kind="chain", concurrency=[2]) == chain
    theirs = folder(kind="chain", drafter=drafter)
    assert theirs != chain
    shape = replace(DrafterShape.build(DrafterConfig(draft_vocab_size=48), target, 3), norm_output=True)
    export_drafter(Drafter(shape), torch.arange(48), [2, 4, 5], target, Path(drafter), "0.5.23")
    assert folder(kind="chain", drafter=drafter) != theirs, "another drafter in the same folder"


def test_a_run_of_it(tmp_path: Path) -> None:
    """From conversations to report without a server: a drafter of others, by real drafts."""
    write_chat_model(tmp_path / "model")
    write_conversations(tmp_path / "talks.jsonl", 30)
    target = read_info(tmp_path / "model")
    make_ours(tmp_path / "theirs", target, [2, 3, 4])
    as_others(tmp_path / "theirs")
    arguments = [
        "name=theirs",
        "target=local",
        "target.name=tiny",
        f"target.path={tmp_path / 'model'}",
        "dataset=jsonl",
        f"dataset.path={tmp_path / 'talks.jsonl'}",
        "dataset.max_length=200",
        "layers.boundaries=[2,3,4]",
        "server=cpu",
        "trainer=cpu",
        "evaluate=chain",
        f"evaluate.drafter={tmp_path / 'theirs'}",
        "evaluate.prompts=[held_out,chat]",
        "evaluate.limit=2",
        "evaluate.max_new_tokens=8",
        f"paths.artifacts={tmp_path / 'artifacts'}",
        f"paths.runs={tmp_path / 'runs'}",
        "tracking=disabled",
    ]
    done = subprocess.run(
        [sys.executable, str(PROJECT / "run.py"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {folder.name for folder in (tmp_path / "artifacts").iterdir()} == {"prepare", "evaluate"}
    (page,) = (tmp_path / "runs").glob("*/*/report/report.md")
    assert re.search(r"Accept length [\d.]+ ± [\d.]+\*\* of real drafts, without a server", page.read_text())
    assert "eval/accept_length_spread" in json.loads((page.parent / "summary.json").read_text())
    assert not list((tmp_path / "runs").glob("*/*/drafter"))
