"""A drafter's folder as something to compute with: ours, and that of others in SGLang's or speculators' layout."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3.drafter.check_boundaries import boundaries_of
from eagle3.drafter.folder import DrafterFiles, read_drafter, unused_norms
from eagle3.drafter.model import Drafter
from eagle3.drafter.vocab import draft_ids_of
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_lm_head


@dataclass(frozen=True)
class LoadedDrafter:
    drafter: Drafter
    """fp32."""
    draft_ids: Tensor
    """[D] int64."""
    boundaries: list[int]
    embedding: Tensor | None
    """[V, H], to be used in place of the target's, where the drafter is of another width."""


def load_drafter(
    folder: Path,
    target: TargetInfo | None = None,
    sglang_version: str | None = None,
    boundaries: list[int] | None = None,
) -> LoadedDrafter:
    """Of a folder that `export_drafter` wrote; or, with a target, of anyone's.

    Args:
        sglang_version: by which the capture ids of others are read; required for those in SGLang's layout.
        boundaries: what it was trained on, where its config.json is not to be believed.

    Raises:
        Eagle3Error: the folder is damaged, or of a kind that can't be computed with here.
    """
    files = read_drafter(folder)
    try:
        _require_known(files)
        drafter = Drafter(files.shape(boundaries))
        tensors = dict(files.tensors)
        if target is None or files.own:
            trained_on = boundaries or [int(b) for b in files.own["boundaries"]]
        else:
            trained_on = boundaries or boundaries_of(files, target, sglang_version or "")
        if len(trained_on) != drafter.shape.num_boundaries:
            raise Eagle3Error(
                f"{folder}: boundaries {trained_on} of a drafter that reads {drafter.shape.num_boundaries}. "
                "`eagle3 verify` says more."
            )
        draft_ids = draft_ids_of(tensors.pop("d2t", torch.zeros(drafter.shape.draft_vocab_size, dtype=torch.int64)))
        tensors.pop("t2d", None)
        embedding = tensors.pop("embed_tokens.weight", None)
        if drafter.embed_proj is None:
            embedding = None
        elif embedding is not None:
            drafter.embed_proj = None
        if target is not None and "lm_head.weight" not in tensors and files.config.get("draft_vocab_size", 0) is None:
            tensors["lm_head.weight"] = load_lm_head(target)
        if drafter.fc is None:
            tensors.pop("fc.weight", None)
        for name in unused_norms(drafter.shape):
            tensors.pop(name, None)
        drafter.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=True)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Eagle3Error(f"{folder}: not a drafter that can be loaded: {error}. `eagle3 verify` says more.") from error
    return LoadedDrafter(drafter, draft_ids, trained_on, embedding)


def _require_known(files: DrafterFiles) -> None:
    switches = {
        "norm_before_residual": files.config.get("norm_before_residual"),
        "norm_before_fc": files.norm_before_fc,
    }
    for switch, on in switches.items():
        if on:
            raise ConfigError(
                f"{files.folder}: it was trained with {switch}, which the drafter here does not have. "
                "It can only be served, by what it was made for"
            )
