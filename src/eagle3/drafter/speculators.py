"""A trained drafter as the folder that vLLM serves and speculators (0.5 to 0.9) loads.

Its capture ids are boundaries as they are; `d2t` holds offsets, as SGLang's.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3.drafter.capture import architecture_of
from eagle3.drafter.export import drafter_tensors, llama_layer, own_record, rope_config, write_folder
from eagle3.drafter.fields import IDS, OWN
from eagle3.drafter.folder import SPECULATORS_ARCHITECTURE, speculators_name
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import d2t, t2d
from eagle3.errors import ConfigError
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding

MADE_FOR = "0.9.0"


def export_speculators(
    drafter: Drafter,
    draft_ids: Tensor,
    boundaries: list[int],
    target: TargetInfo,
    out: Path,
    verifier: str,
    draft_tokens: int = 3,
) -> None:
    """Writes `out`, replacing an earlier export there.

    Args:
        draft_ids: `[D]` target ids of the draft vocabulary, ascending.
        verifier: what the target is called where the drafter will be served: a hub id, or a folder.
        draft_tokens: how many tokens vLLM drafts unless it is told otherwise.

    Raises:
        ConfigError: the layout has no place for such a drafter.
        Eagle3Error: weights are not finite, or the folder can't be written.
    """
    shape = drafter.shape
    if shape.hidden_size != target.hidden_size:
        raise ConfigError(
            f"drafter.hidden_size={shape.hidden_size}: speculators' drafters are as wide as their target "
            f"({target.hidden_size}); --format sglang has other widths"
        )
    if shape.attention_bias:
        raise ConfigError("drafter.attention_bias=true: vLLM's drafter has no biases; --format sglang has that one")
    tensors = {speculators_name(name): t for name, t in drafter_tensors(drafter, target).items()}
    if not shape.uses_fc:
        tensors["fc.weight"] = torch.eye(shape.hidden_size, dtype=torch.bfloat16)
    tensors["embed_tokens.weight"] = load_embedding(target).to(torch.bfloat16)
    if shape.draft_vocab_size != shape.vocab_size:  # speculators has no such buffers for the whole vocabulary
        draft_ids = draft_ids.cpu()
        tensors["d2t"], tensors["t2d"] = d2t(draft_ids), t2d(draft_ids, shape.vocab_size)
    write_folder(out, speculators_config(shape, boundaries, target, verifier, draft_tokens), tensors)


def speculators_config(
    shape: DrafterShape, boundaries: list[int], target: TargetInfo, verifier: str, draft_tokens: int
) -> dict[str, Any]:
    """config.json, as `Eagle3SpeculatorConfig` writes it."""
    scaling = rope_config(shape.rope_scaling)
    layer = {
        **llama_layer(shape),
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta, **(scaling or {})},
        "attention_bias": False,
    }
    return {
        "architectures": [SPECULATORS_ARCHITECTURE],
        "speculators_model_type": "eagle3",
        "speculators_version": MADE_FOR,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": draft_tokens}],
            "verifier": {"name_or_path": verifier, "architectures": [architecture_of(target.path)]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": shape.draft_vocab_size,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "embed_requires_grad": False,
        IDS: list(boundaries),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        OWN: own_record(boundaries, target, "export"),
    }
