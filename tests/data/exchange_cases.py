"""A small target, and datasets of states as that target could have had them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.data.small_datasets import prompts_of, states_of
from tests.target.models import LLAMA, matrix, write_model

from eagle3.data.exchange.exporting import export_data
from eagle3.data.exchange.importing import Import, import_data
from eagle3.data.exchange.norm import FinalNorm, FinalState
from eagle3.data.exchange.table import FORMATS
from eagle3.data.layout import StateShape, state_names
from eagle3.data.shards import HiddenStates
from eagle3.data.writer import write_dataset
from eagle3.metrics import Reporter
from eagle3.target.info import TargetInfo, read_info

HIDDEN, VOCAB, LAYERS = 16, 97, 4
LENGTHS = [5, 9, 4, 12, 7, 6]


class Silent(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def log(self, values: dict[str, Any], step: int | None = None) -> None: ...

    def progress(self, done: float, total: float, **fields: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def write_target(folder: Path, hidden: int = HIDDEN, **config: Any) -> TargetInfo:
    """A Llama of 4 layers (without them) whose final norm has a gain like a real one's."""
    gain = np.random.default_rng(3).uniform(0.5, 4.0, hidden).astype(np.float32)
    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, hidden),
        "model.norm.weight": gain,
        "lm_head.weight": matrix(VOCAB, hidden, seed=1),
    }
    write_model(folder, {**LLAMA, "hidden_size": hidden, "vocab_size": VOCAB, **config}, {"model.safetensors": tensors})
    return read_info(folder)


def write_states(folder: Path, target: TargetInfo, boundaries: list[int], lengths: list[int]) -> HiddenStates:
    """The same states for the same boundaries; `final` is the norm of the output of the last layer, boundary 4."""
    norm = FinalNorm.of(target)
    every = StateShape(tuple(state_names([1, 2, 3, LAYERS])), target.hidden_size)
    shape = StateShape(tuple(state_names(boundaries)), target.hidden_size)

    def states(i: int) -> dict[str, torch.Tensor]:
        found = states_of(lengths[i], i, every)
        scale = torch.linspace(0.3, 30, lengths[i])[:, None]
        before = (found[f"boundary.{LAYERS}"].float() * scale).bfloat16()
        found |= {f"boundary.{LAYERS}": before, "final": norm.apply(before)}
        return {name: found[name] for name in shape.states}

    manifest = write_dataset(folder, prompts_of(lengths), shape, states, shard_gib=30 * shape.token_bytes / 2**30)
    manifest = dataclasses.replace(
        manifest,
        target={"name": target.name, "source": target.source, "fingerprint": target.fingerprint},
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
    )
    manifest.save(folder)
    return HiddenStates(folder)


def content(states: HiddenStates, i: int) -> dict[str, torch.Tensor]:
    return states.read(i, ["input_ids", "loss_mask", *states.manifest.states])


def there(
    states: HiddenStates, out: Path, name: str, target: TargetInfo | None = None, final: FinalState | None = None
) -> Path:
    """An export."""
    export_data(states.folder, out, FORMATS[name], Silent(), target=target, final=final)
    return out


def back(
    folder: Path,
    out: Path,
    name: str,
    boundaries: list[int],
    target: TargetInfo,
    final: FinalState | None = None,
    reporter: Reporter | None = None,
) -> HiddenStates:
    """An import: three shards."""
    job = Import(folder, FORMATS[name], boundaries, target, final)
    import_data(folder, out, job, reporter or Silent(), shard_gib=18 * job.shape.token_bytes / 2**30)
    return HiddenStates(out)


def require_equal(a: HiddenStates, b: HiddenStates, names: list[str] | None = None) -> None:
    assert len(a) == len(b)
    for i in range(len(a)):
        left, right = content(a, i), content(b, i)
        for name in names or left:
            assert torch.equal(left[name], right[name]), (i, name)
