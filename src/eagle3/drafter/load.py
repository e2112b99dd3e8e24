"""Reads an exported drafter back, and checks that SGLang would load all of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3.config.schema import RopeScaling
from eagle3.drafter.capture import architecture_of, captured_boundaries
from eagle3.drafter.export import ARCHITECTURE, OWN
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import draft_ids_of
from eagle3.errors import Eagle3Error
from eagle3.target.info import TargetInfo


@dataclass(frozen=True)
class LoadedDrafter:
    drafter: Drafter
    """fp32."""
    draft_ids: Tensor
    """[D] int64."""
    boundaries: list[int]
    embedding: Tensor | None
    """[V, H], to be used in place of the target's, where the drafter is of another width."""


def load_drafter(folder: Path) -> LoadedDrafter:
    """Of a folder that `export_drafter` wrote. Raises Eagle3Error where it is damaged or of another kind."""
    config, tensors = _read(folder)
    try:
        drafter = Drafter(shape_of(config))
        boundaries = [int(b) for b in config[OWN]["boundaries"]]
        draft_ids = draft_ids_of(tensors.pop("d2t"))
        tensors.pop("t2d")
        embedding = tensors.pop("embed_tokens.weight", None)
        if embedding is not None:
            drafter.embed_proj = None
        drafter.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=True)
    except (KeyError, TypeError, RuntimeError) as error:
        raise Eagle3Error(f"{folder}: not a drafter that eagle3 exported: {error}. Export it again.") from error
    return LoadedDrafter(drafter, draft_ids, boundaries, embedding)


def shape_of(config: dict[str, Any]) -> DrafterShape:
    """The inverse of `drafter_config`."""
    return DrafterShape(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        target_hidden_size=config["target_hidden_size"],
        num_boundaries=config["num_aux_hidden_states"],
        vocab_size=config["vocab_size"],
        draft_vocab_size=config["draft_vocab_size"],
        rope_theta=config["rope_theta"],
        context_length=config["max_position_embeddings"],
        rope_scaling=_rope(config.get("rope_scaling")),
        rms_norm_eps=config["rms_norm_eps"],
        attention_bias=config["attention_bias"],
        fc_norm=config["fc_norm"],
        norm_output=config["norm_output"],
    )


def _rope(config: dict[str, Any] | None) -> RopeScaling | None:
    if config is None:
        return None
    named = {key: value for key, value in config.items() if key in RopeScaling.__dataclass_fields__}
    original = config.get("original_max_position_embeddings", 0)
    return RopeScaling(type=config["rope_type"], original_max_position=original, **named)


def check_drafter(folder: Path, target: TargetInfo) -> list[str]:
    """What is wrong with a drafter's folder for this target; empty when SGLang would serve it as it was trained."""
    try:
        config, tensors = _read(folder)
        shape = shape_of(config)
    except Eagle3Error as error:
        return [str(error)]
    except (KeyError, TypeError) as error:
        return [f"config.json: {error} is missing or of the wrong kind"]
    problems = _config_problems(config, target)
    expected = expected_tensors(shape)
    for name in sorted(expected.keys() - tensors.keys()):
        problems.append(f"model.safetensors: {name} is missing; SGLang would leave it random")
    for name in sorted(tensors.keys() - expected.keys()):
        problems.append(f"model.safetensors: {name} is unknown; SGLang would skip it")
    for name in sorted(expected.keys() & tensors.keys()):
        size, dtype = expected[name]
        tensor = tensors[name]
        if tuple(tensor.shape) != size:
            problems.append(f"model.safetensors: {name} is {list(tensor.shape)}, expected {list(size)}")
        elif tensor.dtype != dtype:
            problems.append(f"model.safetensors: {name} is {tensor.dtype}, expected {dtype}")
        elif tensor.is_floating_point() and not tensor.isfinite().all():
            problems.append(f"model.safetensors: {name} has NaN or infinite values")
    if not problems:
        problems += vocabulary_problems(tensors["d2t"], tensors["t2d"])
    return problems


def expected_tensors(shape: DrafterShape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Every key of model.safetensors, with its size and type."""
    with torch.device("meta"):
        state = Drafter(shape).state_dict()
    expected = {name: (tuple(tensor.shape), torch.bfloat16) for name, tensor in state.items()}
    if expected.pop("embed_proj.weight", None) is not None:
        expected["embed_tokens.weight"] = ((shape.vocab_size, shape.hidden_size), torch.bfloat16)
    expected["d2t"] = ((shape.draft_vocab_size,), torch.int64)
    expected["t2d"] = ((shape.vocab_size,), torch.bool)
    return expected


def vocabulary_problems(offsets: Tensor, mask: Tensor) -> list[str]:
    """Of `d2t [D]` (offsets, not ids) against `t2d [V]`."""
    ids = draft_ids_of(offsets)
    if torch.equal(ids, mask.nonzero()[:, 0]):
        return []
    if torch.equal(offsets, mask.nonzero()[:, 0]):
        return ["model.safetensors: d2t holds target ids; SGLang reads offsets (target id minus draft id)"]
    return ["model.safetensors: d2t does not list, in order, the tokens that t2d marks"]


def _config_problems(config: dict[str, Any], target: TargetInfo) -> list[str]:
    problems = []
    wanted = {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "target_hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
    }
    for key, value in wanted.items():
        if config.get(key) != value:
            problems.append(f"config.json: {key} is {config.get(key)!r}, expected {value!r}")
    eagle = config.get("eagle_config")
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") if isinstance(eagle, dict) else None
    own = config.get(OWN) or {}
    if not ids:
        problems.append(
            "config.json: no eagle_config.eagle_aux_hidden_state_layer_ids; SGLang would capture its default boundaries"
        )
    elif "boundaries" not in own or "sglang_version" not in own:
        problems.append(f"config.json: no {OWN}.boundaries and {OWN}.sglang_version to check the capture ids against")
    else:
        version = own["sglang_version"]
        found = captured_boundaries(ids, architecture_of(target.path), target.num_layers, version)
        if found != own["boundaries"]:
            problems.append(
                f"config.json: SGLang {version} reads the capture ids {ids} as boundaries {found}, "
                f"but the drafter was trained on {own['boundaries']}"
            )
    return problems


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / "config.json").read_text())
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no dict)
    except (OSError, ValueError, SafetensorError) as error:
        raise Eagle3Error(f"{folder}: not a drafter's folder ({error}). Export it again.") from error
    if not isinstance(config, dict):
        raise Eagle3Error(f"{folder}: config.json is not a JSON object. Export it again.")
    return config, tensors
