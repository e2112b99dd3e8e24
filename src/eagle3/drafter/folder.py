"""A drafter's folder as it lies on the disk, by whoever: SGLang's layout or speculators', brought to one form.

Nothing here judges (`check.py` does) and nothing is computed with (`load.py` does).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3.config.schema import RopeScaling
from eagle3.drafter.fields import IDS, LAYER, OWN, FaultyDrafterError, Layout, layout_of, read_config
from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.weights import weight_files

PREFIX = "model."
ARCHITECTURE, SPECULATORS_ARCHITECTURE = "LlamaForCausalLMEagle3", "Eagle3Speculator"

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
    weights: list[Path]
    """The files."""

    @property
    def own(self) -> dict[str, Any]:
        """What eagle3 noted when it exported the folder; {} of others' drafters."""
        return self.config.get(OWN) or {}

    @property
    def server(self) -> str:
        """Who reads the layout."""
        return "vLLM" if self.layout == "speculators" else "SGLang"

    @property
    def llama(self) -> dict[str, Any]:
        """The part of config.json that describes the layers."""
        return self.config[LAYER] if self.layout == "speculators" else self.config

    @property
    def ids(self) -> list[int] | None:
        """The capture ids where the layout's server looks for them. None: it takes its default boundaries."""
        holder = self.config if self.layout == "speculators" else self.config.get("eagle_config") or {}
        return holder.get(IDS)

    @property
    def norm_before_fc(self) -> bool:
        """SGLang looks into eagle_config first."""
        nested = self.config.get("eagle_config") or {}
        return bool(nested.get("norm_before_fc", self.config.get("norm_before_fc")))

    def shape(self, boundaries: list[int] | None = None) -> DrafterShape:
        """Args: boundaries: those that it was trained on, where config.json says too few or too many."""
        return shape_of(self.config, self.llama, len(boundaries or self.ids or [None] * 3))


def read_drafter(folder: Path) -> DrafterFiles:
    """Raises FaultyDrafterError: config.json or the weights can't be read, or have fields of a wrong kind."""
    config = read_config(folder)
    layout = layout_of(config)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise FaultyDrafterError(folder, [f"can't be listed ({error.strerror})"]) from error
    if not any(name.endswith(".safetensors") for name in names):
        raise FaultyDrafterError(folder, [_no_weights(names)])
    tensors: dict[str, Tensor] = {}
    held: dict[str, tuple[str, str]] = {}
    twice: list[str] = []
    try:
        weights = [file.path for file in weight_files(folder)]
        for path in weights:
            with safe_open(path, framework="pt") as opened:
                for stored in opened.keys():  # noqa: SIM118 (no dict)
                    name = _renamed(stored, layout)
                    if name in held:
                        twice.append(f"{path.name}: {stored} is a second {name}: {held[name][0]} has {held[name][1]}")
                    held[name], tensors[name] = (path.name, stored), opened.get_tensor(stored)
    except (OSError, SafetensorError, Eagle3Error) as error:
        fault = str(error).removeprefix(f"{folder}/").removeprefix(f"{folder}: ")
        raise FaultyDrafterError(
            folder, [re.sub(r"\. (Fetch|Make) [^.]*\.$", "", fault)]
        ) from error  # it says so itself
    if not _is_one(config, tensors):
        whole = ", ".join(config.get("architectures") or ["of an unknown class"])
        raise FaultyDrafterError(folder, [f"it is a model that answers by itself ({whole}), and no drafter"])
    if twice:
        raise FaultyDrafterError(folder, [f"{fault}; which one a server takes is chance" for fault in twice])
    files = DrafterFiles(folder, layout, config, tensors, sorted(name for _, name in held.values()), weights)
    try:
        files.shape().check()
    except ConfigError as error:
        raise FaultyDrafterError(folder, [f"config.json: {_of_its_keys(str(error))}"]) from error
    return files


def _is_one(config: dict[str, Any], tensors: dict[str, Tensor]) -> bool:
    """Whether anything in the folder is a drafter's: people give the target's."""
    told = "eagle" in " ".join([*config, *(config.get("architectures") or [])]).lower()
    return told or any(name.startswith(("fc.", "d2t")) for name in tensors)


def _no_weights(names: list[str]) -> str:
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if not pickled:
        return "no *.safetensors there: the drafter's weights are missing"
    return (
        f"its weights are in {', '.join(pickled)}: pickled ones can run code and are not read here. Where you trust "
        f"them: safetensors.torch.save_file(torch.load({pickled[0]!r}, weights_only=True), 'model.safetensors')"
    )


def _of_its_keys(error: str) -> str:
    """What is wrong with a shape, told of config.json's keys instead of an experiment's."""
    what = re.sub(r"\. Set .*$", "", error).rstrip(".")
    for ours, theirs in (("num_kv_heads", "num_key_value_heads"), ("num_heads", "num_attention_heads")):
        what = what.replace(f"drafter.{ours}", theirs)
    return what.replace("drafter.", "")


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
        rms_norm_eps=float(llama.get("rms_norm_eps", 1e-6)),
        attention_bias=bool(llama.get("attention_bias")),
        fc_norm=bool(config.get("fc_norm") or config.get("use_aux_norm")),
        norm_output=bool(config.get("norm_output")),
        num_layers=llama["num_hidden_layers"],
    )


def _rope(config: dict[str, Any]) -> RopeScaling | None:
    kind = config.get("rope_type") or config.get("type") or "default"
    if kind == "default":
        return None
    names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
    named = {name: float(config[name]) for name in names if config.get(name) is not None}
    original = config.get("original_max_position_embeddings") or 0
    return RopeScaling(type=kind, original_max_position=original, **named)
