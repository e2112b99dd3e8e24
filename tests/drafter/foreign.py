"""Drafters as others write them, made from one of ours: other names, other places, and the usual faults."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3.config.schema import DrafterConfig
from eagle3.drafter.export import export_drafter
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.target.info import TargetInfo

DRAFT_IDS = torch.cat((torch.arange(10, 34), torch.arange(36, 84, 2)))
"""48 tokens, as a vocabulary is: dense where tokens are frequent, with gaps further up."""
BOUNDARIES = [2, 4, 5]
"""The default ones of the 8-layer target."""


def make_ours(folder: Path, target: TargetInfo, boundaries: list[int] = BOUNDARIES, **changes: Any) -> Drafter:
    """A random drafter that knows the tokens `DRAFT_IDS`; `changes` of its DrafterConfig."""
    config = DrafterConfig(draft_vocab_size=len(DRAFT_IDS), **changes)
    drafter = Drafter(DrafterShape.build(config, target, len(boundaries)))
    export_drafter(drafter, DRAFT_IDS, boundaries, target, folder, "0.5.23")
    return drafter


def make_theirs(folder: Path, target: TargetInfo) -> Path:
    """A drafter of someone else, and right."""
    make_ours(folder, target)
    as_others(folder)
    return folder


def rewrite(
    folder: Path,
    config: Callable[[dict[str, Any]], object] = lambda config: None,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
) -> None:
    """Both change what they are given; a file that nothing is to be changed in keeps its bytes."""
    described = json.loads((folder / "config.json").read_text())
    config(described)
    (folder / "config.json").write_text(json.dumps(described))
    if tensors is not None:
        stored = load_file(folder / "model.safetensors")
        tensors(stored)
        save_file(stored, folder / "model.safetensors")


def as_others(folder: Path) -> None:
    """As SpecForge leaves it: no word of ours, no default that can be left out, float32."""

    def config(described: dict[str, Any]) -> None:
        del described["eagle3"], described["num_aux_hidden_states"], described["target_hidden_size"]
        del described["fc_norm"], described["norm_output"]

    def tensors(stored: dict[str, Tensor]) -> None:
        del stored["t2d"]
        for name in stored:
            if name != "d2t":
                stored[name] = stored[name].float()

    rewrite(folder, config, tensors)
