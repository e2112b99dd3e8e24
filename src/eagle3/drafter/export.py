"""A trained drafter as the folder that SGLang loads: config.json and model.safetensors in bf16.

SGLang skips keys it does not know and leaves missing ones random, without a word: `check.py` is strict instead.
vLLM's layout is in `speculators.py`.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3.config.schema import RopeScaling
from eagle3.drafter.capture import architecture_of, capture_ids
from eagle3.drafter.fields import IDS, OWN, weights_sha256
from eagle3.drafter.folder import ARCHITECTURE, unused_norms
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import d2t, t2d
from eagle3.errors import Eagle3Error
from eagle3.files.disk import disk_error
from eagle3.files.whole import whole_file
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding

By = Literal["training", "export"]


def export_drafter(
    drafter: Drafter,
    draft_ids: Tensor,
    boundaries: list[int],
    target: TargetInfo,
    out: Path,
    sglang_version: str,
    embedding: Tensor | None = None,
    by: By = "training",
) -> None:
    """Writes `out`, replacing an earlier export there.

    Args:
        draft_ids: `[D]` target ids of the draft vocabulary, ascending.
        boundaries: what the drafter was trained on; the config's ids mean these for `sglang_version`.
        embedding: `[V, H]` of a drafter of another width that has been exported before.
        by: who asked for it; what was exported from elsewhere may be exported again in the same place.

    Raises ConfigError where that version cannot capture them, Eagle3Error where weights are not finite or the folder
    cannot be written.
    """
    config = drafter_config(drafter.shape, boundaries, target, sglang_version, by)
    tensors = drafter_tensors(drafter, target, embedding)
    tensors |= {
        name: torch.ones(drafter.shape.hidden_size, dtype=torch.bfloat16) for name in unused_norms(drafter.shape)
    }
    draft_ids = draft_ids.cpu()
    tensors["d2t"], tensors["t2d"] = d2t(draft_ids), t2d(draft_ids, drafter.shape.vocab_size)
    write_folder(out, config, tensors)


def drafter_tensors(drafter: Drafter, target: TargetInfo, embedding: Tensor | None = None) -> dict[str, Tensor]:
    """The weights in bf16 by SGLang's names, without the vocabulary. Raises Eagle3Error where one is not finite."""
    tensors = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in drafter.state_dict().items()}
    projection = tensors.pop("embed_proj.weight", None)
    if projection is not None:
        tensors["embed_tokens.weight"] = load_embedding(target).to(projection.dtype) @ projection.t()
    elif embedding is not None:
        tensors["embed_tokens.weight"] = embedding.to(torch.bfloat16)
    broken = sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all())
    if broken:
        raise Eagle3Error(f"The drafter has NaN or infinite weights in {', '.join(broken)}: it is not exported.")
    return tensors


def write_folder(out: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """config.json and model.safetensors, each whole. Raises DataError where they can't be written.

    The record under `OWN` gets what `check.py` compares byte by byte: the rest of config.json, and the weights' sha256.
    """
    weights, description = out / "model.safetensors", out / "config.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, out) from error
    # The weights get their name first: a folder that is being served never has a description of others.
    with whole_file(description) as text, whole_file(weights) as tensor_file:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tensor_file, {"format": "pt"})
        written = {key: value for key, value in config.items() if key != OWN}
        own = config[OWN] | {"config": written, "weights_sha256": weights_sha256(tensor_file)}
        text.write_text(json.dumps(written | {OWN: own}, indent=2) + "\n", encoding="utf-8")


def llama_layer(shape: DrafterShape) -> dict[str, Any]:
    """What every reader of a drafter's config.json takes from a Llama's."""
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "max_position_embeddings": shape.context_length,
        "mlp_bias": False,
        "vocab_size": shape.vocab_size,
        # SGLang takes a tied head for the embedding, and a null draft vocabulary for the target's head.
        "tie_word_embeddings": False,
    }


def drafter_config(
    shape: DrafterShape, boundaries: list[int], target: TargetInfo, sglang_version: str, by: By = "training"
) -> dict[str, Any]:
    """config.json: a Llama's, with everything that SGLang's loader and speculative workers look up."""
    if len(boundaries) != shape.num_boundaries:
        raise ValueError(f"{len(boundaries)} boundaries for a drafter of {shape.num_boundaries}")
    architecture = architecture_of(target.path)
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        **llama_layer(shape),
        "rope_theta": shape.rope_theta,
        "rope_scaling": rope_config(shape.rope_scaling),
        "attention_bias": shape.attention_bias,
        "draft_vocab_size": shape.draft_vocab_size,
        "target_hidden_size": shape.target_hidden_size,
        "num_aux_hidden_states": shape.num_boundaries,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "torch_dtype": "bfloat16",
        # Nested: at the top level the ids are ignored and the default boundaries captured instead.
        "eagle_config": {
            IDS: capture_ids(boundaries, architecture, target.num_layers, sglang_version),
            "use_aux_hidden_state": True,
        },
        OWN: own_record(boundaries, target, by) | {"sglang_version": sglang_version},
    }
    return config


def own_record(boundaries: list[int], target: TargetInfo, by: By) -> dict[str, Any]:
    """What no server reads, and `eagle3 verify` compares the rest with."""
    return {
        "by": by,
        "boundaries": list(boundaries),
        "target": {
            "name": target.name,
            "architecture": architecture_of(target.path),
            "num_layers": target.num_layers,
            "fingerprint": target.fingerprint,
        },
    }


def rope_config(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """`rope_scaling` as transformers and SGLang read it."""
    if scaling is None:
        return None
    config: dict[str, Any] = {"rope_type": scaling.type, "factor": scaling.factor}
    if scaling.type != "linear":
        config["original_max_position_embeddings"] = scaling.original_max_position
    if scaling.type == "llama3":
        config |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.type == "yarn":
        config |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    return config
