"""A drafter's folder as it lies on the disk, by whoever: SGLang's layout or speculators', brought to one form.

Nothing here judges (`check.py` does) and nothing is computed with (`load.py` does).
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3.config.schema import RopeScaling
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import Eagle3Error
from eagle3.target.weights import weight_files

Layout = Literal["sglang", "speculators"]
OWN = "eagle3"
"""Key of config.json for what no server reads."""
IDS = "eagle_aux_hidden_state_layer_ids"
PREFIX = "model."

_NAMES = (
    ("layers.0.", "midlayer."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)
"""Other names that are in use, and SGLang's."""
_FURTHER = r"layers\.[1-9]\d*\."
"""Of layers after the first."""


@dataclass(frozen=True)
class DrafterFiles:
    folder: Path
    layout: Layout
    config: dict[str, Any]
    """config.json."""
    tensors: dict[str, Tensor]
    """By SGLang's names."""
    stored: list[str]
    """Their names in the files."""

    @property
    def own(self) -> dict[str, Any]:
        """What eagle3 noted when it exported the folder; {} of others' drafters."""
        found = self.config.get(OWN)
        return found if isinstance(found, dict) else {}

    @property
    def llama(self) -> dict[str, Any]:
        """The part of config.json that describes the layers."""
        return self.config["transformer_layer_config"] if self.layout == "speculators" else self.config

    @property
    def ids(self) -> list[int] | None:
        """The capture ids where the layout's server looks for them. None: it takes its default boundaries."""
        holder = self.config if self.layout == "speculators" else self.config.get("eagle_config")
        return (holder.get(IDS) if isinstance(holder, dict) else None) or None

    def shape(self) -> DrafterShape:
        """Raises KeyError, TypeError or ValueError where config.json does not say."""
        return shape_of(self.config, self.llama, len(self.ids) if self.ids else 3)


def read_drafter(folder: Path) -> DrafterFiles:
    """Raises Eagle3Error where there is no config.json or no whole safetensors file."""
    try:
        config = json.loads((folder / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError("config.json is not a JSON object")
        stored: dict[str, Tensor] = {}
        for file in weight_files(folder):
            with safe_open(file.path, framework="pt") as opened:
                stored |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no dict)
    except (OSError, ValueError, SafetensorError, Eagle3Error) as error:
        raise Eagle3Error(f"{folder}: not a drafter's folder ({error}). Export or fetch it again.") from error
    layout: Layout = "speculators" if "speculators_model_type" in config else "sglang"
    return DrafterFiles(folder, layout, config, {_renamed(n, layout): t for n, t in stored.items()}, sorted(stored))


def speculators_name(name: str) -> str:
    """What speculators calls a tensor: its further layers are plain Llama layers, whose norm goes by that name."""
    name = name.replace("midlayer.", "layers.0.")
    return re.sub(rf"^({_FURTHER})hidden_norm\.", r"\1input_layernorm.", name)


def unused_norms(shape: DrafterShape) -> list[str]:
    """Which SGLang makes in every layer, and uses in the first."""
    return [f"layers.{n}.input_layernorm.weight" for n in range(1, shape.num_layers)]


def _renamed(name: str, layout: Layout) -> str:
    name = name.removeprefix(PREFIX)
    if layout == "speculators":
        name = re.sub(rf"^({_FURTHER})input_layernorm\.", r"\1hidden_norm.", name)
    for other, ours in _NAMES:
        if name.startswith(other):
            return ours + name.removeprefix(other)
    return name


def shape_of(config: dict[str, Any], llama: dict[str, Any] | None = None, num_ids: int = 3) -> DrafterShape:
    """Of SGLang's or speculators' config.json; what may be left out has the meaning that SGLang gives it.

    Args:
        llama: the part about the layers, where it is not the whole.
        num_ids: captured states where nothing else tells.
    """
    llama = config if llama is None else llama
    hidden, heads = llama["hidden_size"], llama["num_attention_heads"]
    rope = llama.get("rope_parameters") or {}
    return DrafterShape(
        hidden_size=hidden,
        intermediate_size=llama["intermediate_size"],
        num_heads=heads,
        num_kv_heads=llama.get("num_key_value_heads") or heads,
        head_dim=llama.get("head_dim") or hidden // heads,
        target_hidden_size=config.get("target_hidden_size") or hidden,
        num_boundaries=config.get("num_aux_hidden_states") or num_ids,
        vocab_size=llama["vocab_size"],
        draft_vocab_size=config.get("draft_vocab_size") or llama["vocab_size"],
        rope_theta=float(llama.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        context_length=llama["max_position_embeddings"],
        rope_scaling=_rope(llama.get("rope_scaling") or rope),
        rms_norm_eps=llama.get("rms_norm_eps", 1e-6),
        attention_bias=bool(llama.get("attention_bias")),
        fc_norm=bool(config.get("fc_norm") or config.get("use_aux_norm")),
        norm_output=bool(config.get("norm_output")),
        num_layers=_num_layers(llama["num_hidden_layers"]),
    )


def _num_layers(found: object) -> int:
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"num_hidden_layers={found!r}")
    return found


def _rope(config: dict[str, Any]) -> RopeScaling | None:
    kind = config.get("rope_type") or config.get("type") or "default"
    if kind == "default":
        return None
    if config.get("attn_factor") not in (None, 1, 1.0):
        raise ValueError(f"rope_scaling.attn_factor={config['attn_factor']} is not known here")
    named = {key: value for key, value in config.items() if key in RopeScaling.__dataclass_fields__ and key != "type"}
    original = config.get("original_max_position_embeddings", 0)
    return RopeScaling(type=kind, original_max_position=original, **named)
