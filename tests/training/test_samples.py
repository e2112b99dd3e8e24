"""Sample drafts: those of the definition, the same in W&B's table, the metrics file and the report."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafter.cases import setting_of
from tests.drafter.reference import Expected, training_time_test
from tests.training.made import BOUNDARIES, load_job, make_job
from tests.training.running import run, weights
from tests.training.watching import Watched, add_tokenizer, watch

from eagle3.data.token_text import TokenText
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.metrics import Tail
from eagle3.tracking.report import ReportInputs, StageRecord, write_report
from eagle3.tracking.run import open_run
from eagle3.training.frozen import Frozen
from eagle3.training.job import Job
from eagle3.training.machine import Machine
from eagle3.training.run import open_data
from eagle3.training.samples import CONTEXT, PLACES, SEQUENCES, choose

EPOCHS = 6


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    make_job(folder, sequences=60)
    add_tokenizer(folder / "target")
    job = load_job(folder, folder / "out", trainer={"epochs": EPOCHS}, optim={"lr": 2e-2}, drafter={"num_layers": 2})
    return watch(job, folder / "run")


def reported(out: Path) -> list[list[dict[str, Any]]]:
    rows = (row.get("values", {}) for row in Tail(out / "metrics.jsonl").rows())
    return [values["val/samples"] for values in rows if "val/samples" in values]


def words(ids: list[int]) -> str:
    return "".join(f"[ w{i}]" for i in ids)


def test_wandb_has_a_table_for_each_validation(watched: Watched) -> None:
    tables = watched.tables("val/samples")
    assert tables == reported(watched.job.out)
    assert len(tables) == EPOCHS
    places = [[(row["sample"], row["position"]) for row in table] for table in tables]
    assert all(place == places[0] for place in places), "the same places each time"
    assert len(set(places[0])) == len(places[0]) == SEQUENCES * PLACES
    data = open_data(watched.job, Machine(torch.device("cpu")))
    assert {sample for sample, _ in places[0]} <= set(data.held_out_set.sample_ids.tolist())
    assert sum(row["accepted"] for row in tables[-1]) > sum(row["accepted"] for row in tables[0])
    steps = [row["train/step"] for row in watched.run.history if "val/samples" in row]
    assert steps == [row["train/step"] for row in watched.run.history if "val/loss" in row]
    assert not [path for path in watched.home.rglob("*") if path.is_file()], "W&B wrote outside the run folder"


def test_drafts_are_those_of_the_definition(watched: Watched) -> None:
    """The last table, made with the last weights, against the reference's loops."""
    job = watched.job
    data = open_data(job, Machine(torch.device("cpu")))
    draft_ids, found = by_definition(job, data)
    for row in reported(job.out)[-1]:
        document, expected, head = found[row["sample"]]
        t = row["position"] - 2
        drafts = [k for k in range(job.config.loss.ttt_steps) if (k, t) in expected.logits]
        assert row["drafts"] == len(drafts) == job.config.loss.ttt_steps
        drafted = [int(draft_ids[expected.logits[k, t].argmax()]) for k in drafts]
        target = [int((head @ document["final"][t + 1 + k]).argmax()) for k in drafts]
        assert row["drafted"] == words(drafted)
        assert row["target"] == words(target)
        assert row["accepted"] == next((k for k in drafts if drafted[k] != target[k]), len(drafts))
        context = document["input_ids"][max(0, t + 2 - CONTEXT) : t + 2].tolist()
        assert row["context"] == "..." * (t + 2 > CONTEXT) + " ".join(f"w{i}" for i in context)


def by_definition(
    job: Job, data: Any
) -> tuple[torch.Tensor, dict[int, tuple[dict[str, torch.Tensor], Expected, torch.Tensor]]]:
    """The draft vocabulary; and of each held-out sample its tensors, the reference's result, and the target's head."""
    from safetensors.torch import load_file

    draft_ids = load_file(job.out / "draft_vocabulary.safetensors")["draft_ids"]
    frozen = Frozen.load(job.target, draft_ids)
    shape = DrafterShape.build(job.config.drafter, job.target, len(BOUNDARIES))
    setting = setting_of(Drafter(shape))
    learnt = {name.removeprefix("drafter."): weight.double() for name, weight in weights(job.out).items()}
    assert frozen.head is not None
    embedding, head, found = frozen.embedding.double(), frozen.head.double(), {}
    for i in choose(data.held_out_set, job.config.loss.ttt_steps, job.config.trainer.tokens_per_batch):
        read = data.held_out_set[i]
        document = {
            "input_ids": read["input_ids"].long(),
            "loss_mask": read["loss_mask"],
            "states": torch.cat([read[f"boundary.{b}"] for b in BOUNDARIES], dim=1).double(),
            "final": read["final"].double(),
        }
        tables = (embedding, head, draft_ids)
        expected = training_time_test(learnt, setting, [document], *tables, job.config.loss.ttt_steps, "ce")
        found[int(data.held_out_set.sample_ids[i])] = (document, expected, head)
    return draft_ids, found


def test_the_report_shows_the_first_and_the_exported_drafter(watched: Watched, tmp_path: Path) -> None:
    job = watched.job
    record = StageRecord("train", job.out, 1.0, False)
    page = (write_report(tmp_path, ReportInputs(job.config, [record], {}, {}, BOUNDARIES)) / "report.md").read_text()
    section = page.split("## Sample drafts\n")[1].split("\n## ")[0]
    accepted = [row["values"] for row in Tail(job.out / "metrics.jsonl").rows() if "values" in row]
    lengths = [values["val/accept_length"] for values in accepted if "val/accept_length" in values]
    tables = reported(job.out)
    best = lengths.index(max(lengths))
    assert best > 0
    for first, row in zip(tables[0], tables[best], strict=True):
        assert f"conversation {row['sample']}, token {row['position']}: {row['context']}\n" in section
        assert f"  target              {row['target']}\n" in section
        assert f"  after epoch 1       {first['drafted']}  {first['accepted']} of {first['drafts']}\n" in section
        assert f"  this drafter        {row['drafted']}  {row['accepted']} of {row['drafts']}\n" in section
    assert section.count("```") == 2


def test_without_a_tokenizer_ids_are_shown(tmp_path: Path) -> None:
    make_job(tmp_path)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 1})
    assert TokenText.of(job.target, trust_remote_code=False) is None
    run(job)
    for row in reported(job.out)[0]:
        assert all(word.isdigit() for word in row["context"].removeprefix("...").split())
        assert all(i.isdigit() for i in row["drafted"].strip("[]").split("]["))


def test_text_stays_here_where_it_is_not_wanted(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    job = watched.job
    cfg = replace(job.config, tracking=replace(job.config.tracking, samples=False))
    with open_run(cfg, tmp_path / "run", {}, {}, warn=pytest.fail) as tracked:
        for row in Tail(job.out / "metrics.jsonl").rows():
            if "values" in row:
                tracked.log(row["values"], row["step"])
        folder = tracked.folder
    assert folder is not None
    assert not list(folder.rglob("*.table.json"))


def test_sequences_fit_into_a_batch(tmp_path: Path) -> None:
    make_job(tmp_path, sequences=80)
    data = open_data(load_job(tmp_path, tmp_path / "out"), Machine(torch.device("cpu")))
    lengths = data.held_out_set.lengths
    for tokens in (1, 40, 60, 1000):
        chosen = choose(data.held_out_set, 3, tokens)
        assert len(chosen) == 1 or lengths[chosen].sum() <= tokens
    assert len(choose(data.held_out_set, 3, 1000)) == SEQUENCES
    assert math.prod(data.held_out_set.scored(3)[choose(data.held_out_set, 3, 1000), 0]) > 0


def test_a_character_of_several_tokens() -> None:
    """Bytes of a character that come apart are shown as what each token adds."""
    text = TokenText(lambda ids: bytes(ids).decode(errors="replace"))
    assert text.pieces([*b"a "], [*"é!".encode()]) == ["\N{REPLACEMENT CHARACTER}", "é", "!"]
    assert text.text([*"né".encode()]) == "né"
