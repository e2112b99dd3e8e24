"""Figures of two ranks, which have other tokens each: brought together, and written once."""

from pathlib import Path

import pytest
import torch
from tests.training.made import load_job, make_job
from tests.training.watching import watch

from eagle3.drafter.flops import training_flops
from eagle3.drafter.shape import DrafterShape
from eagle3.metrics import Tail
from eagle3.training.machine import Machine
from eagle3.training.run import open_data
from eagle3.training.samples import PLACES, SEQUENCES


def test_two_ranks_count_as_one(tmp_path: Path) -> None:
    make_job(tmp_path, sequences=60)
    job = load_job(tmp_path, tmp_path / "out", trainer={"epochs": 2, "devices": 2, "tokens_per_batch": 64})
    loaders = [open_data(job, Machine(torch.device("cpu"), rank, 2, 2)).train_loader for rank in (0, 1)]
    both = [[loader.read(0, i) for i in range(len(loader))] for loader in loaders]
    own = [[len(batch.batch.input_ids) for batch in rank] for rank in both]
    assert own[0] != own[1]
    assert [batch.tokens for batch in both[0]] == [batch.tokens for batch in both[1]]
    assert [batch.tokens for batch in both[0]] == [a + b for a, b in zip(*own, strict=True)]

    watched = watch(job, tmp_path / "run")
    rows = [row for row in watched.run.history if "train/loss" in row]
    steps = len(loaders[0])
    assert [row["train/step"] for row in rows] == list(range(1, 2 * steps + 1)), "one row a step"
    assert [row["train/tokens"] for row in rows[:steps]] == [
        sum(own[0][:i]) + sum(own[1][:i]) for i in range(1, steps + 1)
    ]
    shape = DrafterShape.build(job.config.drafter, job.target, len(job.boundaries))
    for i, row in enumerate(rows[:steps]):
        # Rates of a row are over the same time: FLOPs, response tokens and tokens are as they are together.
        flops = sum(training_flops(shape, rank[i].work) for rank in both)
        tokens = sum(len(rank[i].batch.input_ids) for rank in both)
        assert row["train/tflops_per_s"] / row["train/tokens_per_s"] == pytest.approx(flops / tokens / 1e12)
        responses = int(sum(rank[i].plan.counts[0] for rank in both))
        assert row["train/response_tokens_per_s"] / row["train/tokens_per_s"] == pytest.approx(responses / tokens)
    tables = watched.tables("val/samples")
    assert len(tables) == 2
    assert all(PLACES <= len(table) <= SEQUENCES * PLACES for table in tables)
    assert sum("val/samples" in row.get("values", {}) for row in Tail(job.out / "metrics.jsonl").rows()) == 2
