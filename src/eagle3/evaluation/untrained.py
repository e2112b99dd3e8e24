"""A drafter of the same shape with random weights: it must gain nothing, or what measures it is wrong."""

from pathlib import Path

import torch

from eagle3.drafter.export import export_drafter
from eagle3.drafter.load import LoadedDrafter
from eagle3.drafter.model import Drafter
from eagle3.target.info import TargetInfo


def export_untrained(loaded: LoadedDrafter, target: TargetInfo, out: Path, seed: int, sglang_version: str) -> None:
    """Writes `out`, for that SGLang: the vocabulary and boundaries of the drafter, and nothing that it has learnt."""
    drafter = Drafter(loaded.drafter.shape)
    drafter.reset(torch.Generator().manual_seed(seed))
    export_drafter(drafter, loaded.draft_ids, loaded.boundaries, target, out, sglang_version)
