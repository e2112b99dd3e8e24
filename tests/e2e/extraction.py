"""What the tests of extraction share: prompts, a configuration for the CPU, and what transformers says."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tests.e2e.models import VOCAB
from torch import Tensor
from transformers import PreTrainedModel

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, ServerFlags, TargetConfig

BOUNDARIES = [1, 3, 4]
CHUNK = 128
"""Tokens of a chunk of chunked prefill: the longer prompts are split."""


def lengths(count: int, longest: int = 300, seed: int = 0) -> list[int]:
    """Mixed: one token, one chunk and its neighbours, the longest, and random ones."""
    chance = np.random.default_rng(seed)
    fixed = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, longest]
    return [*fixed, *chance.integers(3, 100, count - len(fixed)).tolist()]


def write_prompts(folder: Path, lengths: list[int], seed: int = 0) -> list[Tensor]:
    """prompts.safetensors of random tokens; gives them."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    ids = [chance.integers(3, VOCAB, n).astype(np.int32) for n in lengths]
    tensors = {
        "input_ids": np.concatenate(ids),
        "loss_mask": np.concatenate([(np.arange(n) % 2).astype(np.uint8) for n in lengths]),
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "sample_ids": np.arange(len(lengths), dtype=np.int64) * 2 + 10,
        "held_out": np.zeros(len(lengths), np.uint8),
    }
    save_file(tensors, folder / "prompts.safetensors")
    return [torch.from_numpy(x.astype(np.int64)) for x in ids]


def cpu_config(model: Path, **server: Any) -> Config:
    """Shards of about 1,000 tokens with hidden size 64 and four states."""
    flags = ServerFlags(extraction={"chunked_prefill_size": CHUNK, "max_total_tokens": 4096, "log_level": "info"})
    return Config(
        name="test",
        target=TargetConfig(name="tiny", path=str(model)),
        server=ServerConfig(device="cpu", flags=flags, concurrency=8, startup_timeout_s=900.0, **server),
        dataset=DatasetConfig(name="random", path="none", shard_gib=0.0005),
    )


class Quiet:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bars: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        self.rows.append(values)

    def progress(self, done: float, total: float, **fields: Any) -> None:
        self.bars.append({"done": done, "total": total, **fields})

    def note(self, text: str) -> None:
        self.notes.append(text)


@torch.no_grad()
def expected_states(model: PreTrainedModel, input_ids: Tensor) -> dict[str, Tensor]:
    """transformers' states of one sequence, [S, H]: hidden_states[b] enters layer b; the last one is after the norm."""
    states = model(input_ids[None], output_hidden_states=True).hidden_states
    return {**{f"boundary.{b}": states[b][0] for b in BOUNDARIES}, "final": states[-1][0]}
