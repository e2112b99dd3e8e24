"""What a run is said to have cost: each stage that held GPUs, and as many as it held."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tracking.artifact_samples import write_all

from eagle3.config.differences import flat
from eagle3.config.schema import Config, DatasetConfig, TargetConfig
from eagle3.pipeline.bench import add_bench_figures
from eagle3.tracking.cost import gpus, stage_hours
from eagle3.tracking.report import ReportInputs, StageRecord, write_report

CUDA = {"server.device": "cuda", "server.tp": 2}


@pytest.mark.parametrize(
    ("stage", "further", "held"),
    [
        ("extract", {}, 2),
        ("extract", {"server.flags.common.dp_size": 4}, 8),
        ("extract", {"server.flags.serving.dp_size": 4}, 2),
        ("extract", {"server.flags.common.dp_size": 2, "server.flags.common.enable_dp_attention": True}, 2),
        ("extract", {"server.flags.common.attn_dp_size": 2}, 2),
        ("bench", {"server.flags.common.dp_size": 4, "server.flags.serving.dp_size": 3}, 6),
        ("bench", {"server.flags.serving.data_parallel_size": 2, "server.flags.serving.pp_size": 2}, 8),
        ("prepare", {}, 0),
        ("prepare", {"prepare.regenerate": True, "server.flags.serving.dp_size": 2}, 4),
        ("evaluate", {"evaluate.kind": "served", "trainer.accelerator": "gpu"}, 2),
        ("evaluate", {"evaluate.kind": "chain", "trainer.accelerator": "gpu", "trainer.devices": 8}, 1),
        ("train", {"trainer.accelerator": "gpu", "trainer.devices": 8, "trainer.nodes": 2}, 16),
        ("bench", {"server.device": "cpu", "server.flags.common.dp_size": 4}, 0),
    ],
)
def test_gpus_of_a_stage(stage: str, further: dict[str, Any], held: int) -> None:
    assert gpus(stage, CUDA | further) == held


def test_the_measured_target_and_replicas_are_in_a_runs_own_cost(tmp_path: Path) -> None:
    target = TargetConfig(name="smollm2", path="HuggingFaceTB/SmolLM2-135M-Instruct")
    cfg = Config(name="quick", target=target, dataset=DatasetConfig(name="d", path="d.jsonl"))
    cfg.server.device, cfg.server.tp, cfg.trainer.accelerator = "cuda", 2, "gpu"
    cfg.server.flags.common["dp_size"] = 2
    folders, bench = write_all(tmp_path), tmp_path / "bench"
    bench.mkdir()
    (bench / "summary.json").write_text(json.dumps({"bench/decode_1": 100.0, "bench/stage_seconds": 900.0}))
    (bench / "nccl.json").write_text("{}")
    records = [StageRecord(name, folders[name], 3600.0, False) for name in ("prepare", "extract", "train", "evaluate")]
    records.append(StageRecord("bench", bench, 930.0, False))
    folder = write_report(tmp_path / "run", ReportInputs(cfg, records, {}, {}, [2, 15, 27]))
    page = (folder / "report.md").read_text()
    assert "| bench | 15 min 30 s |" in page

    figures = add_bench_figures(cfg, bench, folder)
    assert figures == json.loads((folder / "summary.json").read_text())
    assert figures["cost/gpu_hours"] == 4 + 1 + 1 + 4 * 0.25, "four GPUs a server, one a child"
    assert figures["cost/cpu_hours"] == 1
    hours = stage_hours(figures, dict(flat(dataclasses.asdict(cfg))))
    assert sum(gpu for gpu, _ in hours.values()) == figures["cost/gpu_hours"], "as `eagle3 compare` adds it up"
