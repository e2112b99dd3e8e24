"""Training on 1, 2, ... devices of one host: tokens/s, share of perfect scaling, memory; started as run.py does it.

    python bench/train_ranks.py llama31_8b --devices 1 2 --folder /dev/shm/ranks          # one GPU each
    python bench/train_ranks.py smollm2 --cpu --devices 1 2 --steps 12 --tokens 20000 --tokens-per-batch 1024

Random states of a shape, written once. Every device count trains the same number of steps with the same tokens for
each device, so 100% is N times the rate of one. Rates are medians of the trainer's own reports, without the first ones.
A training that fails is told with the end of its ranks' logs, and the next one is begun.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3.config.schema import TrainerConfig
from eagle3.data.layout import StateShape, state_names
from eagle3.data.placement import PROMPTS, Prompts
from eagle3.data.prepare import save_prompts
from eagle3.data.writer import write_dataset
from eagle3.metrics import Tail
from eagle3.pipeline.child import training_module

WARM_UP_REPORTS = 2
LOG_TAIL = 15
"""Lines of a rank's log."""
SEED = 0


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    vocab: int
    draft_vocab: int
    ttt_steps: int


SHAPES = {
    "llama31_8b": Shape(4096, 14336, 32, 8, 32, 128_256, 32_000, 7),
    "smollm2": Shape(576, 1536, 9, 3, 30, 49_152, 2048, 3),
}


def write_target(folder: Path, shape: Shape) -> None:
    """config.json, embedding and output head; no more is read of a target."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(SEED)
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    made = {name: torch.randn(shape.vocab, shape.hidden, generator=generator).bfloat16() for name in tables}
    save_file(made, folder / "model.safetensors")


def write_states(folder: Path, shape: Shape, boundaries: list[int], tokens: int, length: int) -> None:
    """`prompts` and `states`: sequences of one length, all of them answers, so that every device has as much to do."""
    count = max(tokens // length, 16)
    generator = np.random.default_rng(SEED)
    prompts = Prompts(
        input_ids=generator.integers(0, shape.vocab, count * length, dtype=np.int32),
        loss_mask=np.ones(count * length, np.uint8),
        offsets=np.arange(count + 1, dtype=np.int64) * length,
        sample_ids=np.arange(count, dtype=np.int64),
    )
    (folder / "prompts").mkdir(parents=True)
    save_prompts(
        folder / "prompts" / PROMPTS,
        np.split(prompts.input_ids, count),
        np.split(prompts.loss_mask, count),
        prompts.sample_ids.tolist(),
        (np.arange(count) < 8).astype(np.uint8),
    )
    kept = StateShape(tuple(state_names(boundaries)), shape.hidden)
    noise = torch.randn(length, shape.hidden).bfloat16()
    write_dataset(
        folder / "states", prompts, kept, lambda i: {name: noise.roll(i, 0) for name in kept.states}, 2.0, shape.vocab
    )


def measure(
    folder: Path, shape: Shape, boundaries: list[int], trainer: dict[str, Any], name: str
) -> dict[str, float] | None:
    """Medians of one training's reports; None where it failed, which is told."""
    out = folder / name
    out.mkdir()
    job = {
        "config": {
            "name": "ranks",
            "target": {"name": "made", "path": str(folder / "target")},
            "dataset": {"name": "made", "path": "made"},
            "layers": {"boundaries": boundaries},
            "drafter": {"draft_vocab_size": shape.draft_vocab},
            "loss": {"ttt_steps": shape.ttt_steps},
            "trainer": trainer,
        },
        "dataset": str(folder / "states"),
        "prompts": str(folder / "prompts"),
        "target": str(folder / "target"),
        "text_prefix": "",
        "boundaries": boundaries,
        "out": str(out),
    }
    (out / "job.json").write_text(json.dumps(job))
    module = training_module(TrainerConfig(devices=trainer["devices"]))
    # Never NVLink's multicast: on a host that others share, a program that fails in it can take their GPUs along.
    environment = {"NCCL_NVLS_ENABLE": "0", **os.environ}
    done = subprocess.run([sys.executable, "-m", module, str(out / "job.json")], env=environment, check=False)
    if done.returncode:
        for log in sorted(out.glob("train.rank*.log")):
            print(f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL:]))
        print(f"{name}: exit code {done.returncode}", flush=True)
        shutil.rmtree(out)
        return None
    reports = [row["values"] for row in Tail(out / "metrics.jsonl").rows() if "train/loss" in row.get("values", {})]
    kept = reports[WARM_UP_REPORTS:]
    shutil.rmtree(out)
    names = ("train/tokens_per_s", "train/data_wait", "train/gpu_memory_gib")
    return {name: statistics.median(row[name] for row in kept) for name in names if name in kept[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--strategies", nargs="+", default=["ddp", "sharded"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--tokens", type=int, default=500_000, help="of the dataset")
    parser.add_argument("--length", type=int, default=512, help="of a sequence")
    parser.add_argument("--tokens-per-batch", type=int, default=8192)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--folder", type=Path, required=True, help="a new one; removed afterwards")
    given = parser.parse_args()
    shape, folder = SHAPES[given.shape], given.folder.resolve()
    boundaries = [2, shape.layers // 2, shape.layers - 3]
    folder.mkdir(parents=True)
    try:
        write_target(folder / "target", shape)
        write_states(folder, shape, boundaries, given.tokens, given.length)
        alone: float | None = None
        print("devices  strategy  tokens/s  scaling  data wait  GPU memory", flush=True)
        for devices in given.devices:
            for strategy in given.strategies if devices > 1 else ["ddp"]:
                trainer = {
                    "accelerator": "cpu" if given.cpu else "gpu",
                    "devices": devices,
                    "strategy": strategy,
                    "tokens_per_batch": given.tokens_per_batch,
                    "accumulate": given.accumulate,
                    "epochs": given.steps,  # more than are needed: max_steps ends it
                    "max_steps": given.steps,
                    "checkpoint_every": 1_000_000,
                    "log_every": max(given.steps // 12, 1),
                }
                began = time.perf_counter()
                found = measure(folder, shape, boundaries, trainer, f"{devices}-{strategy}")
                if found is None:
                    continue
                rate = found["train/tokens_per_s"]
                alone = rate / devices if alone is None else alone
                memory = f"{found['train/gpu_memory_gib']:.1f} GiB" if "train/gpu_memory_gib" in found else "-"
                print(
                    f"{devices:7}  {strategy:8}  {rate:8,.0f}  {rate / devices / alone:7.1%}  "
                    f"{found['train/data_wait']:9.1%}  {memory:10}  {time.perf_counter() - began:.0f} s in all",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
