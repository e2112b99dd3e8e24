"""What the tests of extraction share: prompts, a configuration for the CPU, and what transformers says."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors.numpy import save_file
from tests.e2e.models import VOCAB
from torch import Tensor
from transformers import PreTrainedModel

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, ServerFlags, TargetConfig
from eagle3.data.extract import run_extraction
from eagle3.data.manifest import Manifest
from eagle3.target import TargetInfo, read_info

BOUNDARIES = [1, 3, 4]
CHUNK = 128
"""Tokens of a chunk of chunked prefill: the longer prompts are split."""


def lengths(count: int, longest: int = 300, seed: int = 0) -> list[int]:
    """Mixed: one token, one chunk and its neighbours, the longest, and random ones."""
    chance = np.random.default_rng(seed)
    fixed = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, longest]
    return [*fixed, *chance.integers(3, 100, count - len(fixed)).tolist()]


def write_prompts(folder: Path, lengths: list[int], seed: int = 0, bad: dict[int, int] | None = None) -> list[Tensor]:
    """prompts.safetensors of random tokens from 3 on; gives them.

    Args:
        bad: sequence -> the token in its middle.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    ids = [chance.integers(3, VOCAB, n).astype(np.int32) for n in lengths]
    for i, token in (bad or {}).items():
        ids[i][ids[i] == VOCAB - 1] = 3  # the proof takes no prompt with the vocabulary's last token
        ids[i][lengths[i] // 2] = token
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
        server=ServerConfig(device="cpu", flags=flags, startup_timeout_s=900.0, **{"concurrency": 8, **server}),
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


class At(Quiet):
    """Does something once when so many sequences are committed."""

    def __init__(self, count: int, action: Callable[[], Any]) -> None:
        super().__init__()
        self.count = count
        self.action: Callable[[], Any] | None = action

    def progress(self, done: float, total: float, **fields: Any) -> None:
        super().progress(done, total, **fields)
        if done >= self.count and fields["unit"] == "sequences" and self.action is not None:
            action, self.action = self.action, None
            action()


class Setting:
    """A folder with a target in `model` and `prompts`; datasets are extracted beside them."""

    def __init__(self, root: Path, **server: Any) -> None:
        self.root = root
        self.target: TargetInfo = read_info(root / "model")
        self.config = cpu_config(root / "model", **server)

    def extract(self, out: str, reporter: Quiet | None = None) -> Manifest:
        folder = self.root / out
        reporter = reporter or Quiet()
        logs = self.root / "logs" / folder.name
        return run_extraction(self.config, self.target, self.root / "prompts", folder, BOUNDARIES, reporter, logs)


def process_of(owner: psutil.Process, words: str) -> psutil.Process | None:
    """The process below `owner` with these words in its command line: `launch_server`, `sglang::scheduler`."""
    for process in owner.children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if words in " ".join(line) and "warden.py" not in " ".join(line[:4]):
            return process
    return None


def own_process(words: str) -> psutil.Process:
    found = process_of(psutil.Process(os.getpid()), words)
    assert found is not None, words
    return found


@torch.no_grad()
def expected_states(model: PreTrainedModel, input_ids: Tensor) -> dict[str, Tensor]:
    """transformers' states of one sequence, [S, H]: hidden_states[b] enters layer b; the last one is after the norm."""
    states = model(input_ids[None], output_hidden_states=True).hidden_states
    return {**{f"boundary.{b}": states[b][0] for b in BOUNDARIES}, "final": states[-1][0]}
