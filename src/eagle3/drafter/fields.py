"""What config.json of a drafter must be made of, field by field, before anything is computed from it. No torch here."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from eagle3.errors import Eagle3Error

Layout = Literal["sglang", "speculators"]
OWN = "eagle3"
"""Key of config.json for what no server reads."""
IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = "transformer_layer_config"
"""Where speculators' layout describes the layers."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class FaultyDrafterError(Eagle3Error):
    """A folder that can't be read as a drafter's."""

    def __init__(self, folder: Path, faults: list[str]) -> None:
        super().__init__(
            f"{folder}: not a drafter's folder ({'; '.join(faults)}). Mend that, or export or fetch it again."
        )
        self.faults = faults


@dataclass(frozen=True)
class _Kind:
    says: str
    holds: Callable[[Any], bool]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e30  # not NaN either


def _version(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(Version(value))
    except InvalidVersion:
        return False


LARGEST, MOST = 2**28, 1000
"""Sizes and counts beyond these are mistakes, and would be computed with for very long."""
_SIZE = _Kind(f"a whole number from 1 to {LARGEST:,}", lambda value: _whole(value) and 1 <= value <= LARGEST)
_COUNT = _Kind(f"a whole number from 1 to {MOST:,}", lambda value: _whole(value) and 1 <= value <= MOST)
_POSITIVE = _Kind("a number above 0", lambda value: _number(value) and value > 0)
_FACTOR = _Kind("a number of at least 1", lambda value: _number(value) and value >= 1)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_OBJECT = _Kind("an object", lambda value: isinstance(value, dict))
_WHOLES = _Kind(
    "a list of whole numbers", lambda value: isinstance(value, list) and bool(value) and all(map(_whole, value))
)
_TEXTS = _Kind(
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)
)
_VERSION = _Kind("a version such as 0.5.23", _version)
_ROPE = _Kind(f"one of {', '.join(ROPE_TYPES)}", lambda value: isinstance(value, str) and value in ROPE_TYPES)
_ONE = _Kind("1 (others are not known here)", lambda value: _number(value) and value == 1)

_REQUIRED = {
    "num_hidden_layers": _COUNT,
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "num_attention_heads": _SIZE,
    "vocab_size": _SIZE,
    "max_position_embeddings": _SIZE,
}
_LAYER = {
    "model_type": _TEXT,
    "hidden_act": _TEXT,
    "num_key_value_heads": _SIZE,
    "head_dim": _SIZE,
    "rope_theta": _POSITIVE,
    "attention_bias": _FLAG,
    "mlp_bias": _FLAG,
    "bias": _FLAG,
}
_TOP = {
    "architectures": _TEXTS,
    "num_aux_hidden_states": _COUNT,
    "draft_vocab_size": _SIZE,
    "tie_word_embeddings": _FLAG,
    **dict.fromkeys(("fc_norm", "use_aux_norm", "norm_output", "norm_before_fc", "norm_before_residual"), _FLAG),
    IDS: _WHOLES,
}
_EAGLE = {"use_aux_hidden_state": _FLAG, "norm_before_fc": _FLAG, IDS: _WHOLES}
_RECORD = {"sglang_version": _VERSION, "weights_sha256": _TEXT, "by": _TEXT}
_TARGET = {"name": _TEXT, "architecture": _TEXT, "num_layers": _COUNT, "fingerprint": _TEXT}

ANOTHER_KIND: dict[str, Any] = {
    "partial_rotary_factor": 1,
    "rope_is_neox_style": True,
    **dict.fromkeys(("quantization_config", "compression_config", "attribute_map", "dual_chunk_attention_config")),
    **dict.fromkeys(("text_config", "llm_config", "language_config", "thinker_config", "final_logit_softcapping")),
}
"""Keys that make of SGLang's drafter something that nothing here computes, and the value that does not."""
CHANGES_SERVING = frozenset(
    {*_REQUIRED, *_LAYER, *_TOP, *_EAGLE, "rms_norm_eps", "target_hidden_size", "rope_scaling", "rope_parameters"}
    | {*ANOTHER_KIND, "original_max_position_embeddings", "dtype", "torch_dtype", "auto_map"}
    | {"sliding_window", "sliding_window_size", "window_size", "attention_chunk_size", "num_nextn_predict_layers"}
    | {"v_head_dim", "swa_head_dim", "swa_v_head_dim", "enable_lm_head_fp32", "enable_lm_head_output_fp32"}
    | {"index_share_for_mtp_iteration", "speculators_model_type", "speculators_config", LAYER, "eagle_config"}
)
"""Keys, at whatever level, that a server of either layout reads."""
QUANTISED = ("hf_quant_config.json", "quant_model_description.json")
"""Files beside config.json by which SGLang takes the weights for quantised ones."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, every field of which has its type. Raises FaultyDrafterError naming those that have not."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        there = "a file: give the folder that holds it" if folder.is_file() else "there is no such folder"
        fault = "config.json: is missing" if folder.is_dir() else there
        if (inner := folder / "drafter" / "config.json").is_file():  # a run's folder, or a training's
            fault += f"; the drafter there is {inner.parent}: give that"
        raise FaultyDrafterError(folder, [fault]) from None
    except OSError as error:
        raise FaultyDrafterError(folder, [f"config.json: can't be read ({error.strerror})"]) from error
    except (ValueError, RecursionError) as error:
        raise FaultyDrafterError(folder, [f"config.json: not JSON ({error})"]) from error
    if not isinstance(config, dict):
        raise FaultyDrafterError(folder, [f"config.json: a {type(config).__name__}, expected an object"])
    if faults := [f"config.json: {fault}" for fault in _faults(config)]:
        raise FaultyDrafterError(folder, faults)
    return config


def weights_sha256(path: Path) -> str:
    """Of the bytes of a weights' file, as the record under `OWN` has it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def layout_of(config: Mapping[str, Any]) -> Layout:
    return "speculators" if "speculators_model_type" in config else "sglang"


def _faults(config: dict[str, Any]) -> Iterator[str]:
    layout = layout_of(config)
    # SGLang takes a width that is null as it is, and ends; speculators writes null for the drafter's own.
    yield from _typed(config, "", {"target_hidden_size": _SIZE}, null=layout == "speculators")
    yield from _typed(config, "", _TOP)
    if layout == "speculators":
        yield from _typed(config, "", {"speculators_model_type": _TEXT, LAYER: _OBJECT}, required=True)
        yield from _typed(config, "", {"speculators_config": _OBJECT})
        yield from _verifier(_object(config, "speculators_config"))
        if isinstance(config.get(LAYER), dict):
            yield from _layer(config[LAYER], f"{LAYER}.")
    else:
        yield from _layer(config, "")
        yield from _typed(config, "", {"eagle_config": _OBJECT})
        yield from _typed(_object(config, "eagle_config"), "eagle_config.", _EAGLE)
    yield from _typed(config, "", {OWN: _OBJECT})
    if own := _object(config, OWN):
        yield from _typed(own, f"{OWN}.", {"boundaries": _WHOLES}, required=True)
        yield from _typed(own, f"{OWN}.", _RECORD)
        yield from _typed(own, f"{OWN}.", {"target": _OBJECT, "config": _OBJECT})
        yield from _typed(_object(own, "target"), f"{OWN}.target.", _TARGET)


def _verifier(config: dict[str, Any]) -> Iterator[str]:
    where = "speculators_config."
    yield from _typed(config, where, {"algorithm": _TEXT, "verifier": _OBJECT})
    verifier = _object(config, "verifier")
    yield from _typed(verifier, f"{where}verifier.", {"name_or_path": _TEXT, "architectures": _TEXTS})


def _layer(config: dict[str, Any], where: str) -> Iterator[str]:
    yield from _typed(config, where, _REQUIRED, required=True)
    yield from _typed(config, where, _LAYER)
    yield from _typed(config, where, {"rms_norm_eps": _POSITIVE}, null=False)
    for key in ("rope_scaling", "rope_parameters"):
        yield from _typed(config, where, {key: _OBJECT})
        yield from _rope(_object(config, key), f"{where}{key}.")


def _rope(config: dict[str, Any], where: str) -> Iterator[str]:
    yield from _typed(config, where, {"rope_type": _ROPE, "type": _ROPE, "rope_theta": _POSITIVE, "attn_factor": _ONE})
    kind = config.get("rope_type") or config.get("type") or "default"
    if kind in ("linear", "llama3", "yarn"):
        yield from _typed(config, where, {"factor": _FACTOR}, required=True)
    if kind in ("llama3", "yarn"):
        yield from _typed(config, where, {"original_max_position_embeddings": _SIZE}, required=True)
    if kind == "llama3":
        yield from _typed(config, where, {"low_freq_factor": _POSITIVE, "high_freq_factor": _POSITIVE}, required=True)
    yield from _typed(config, where, {"beta_fast": _POSITIVE, "beta_slow": _POSITIVE})


def _typed(
    config: dict[str, Any], where: str, kinds: Mapping[str, _Kind], required: bool = False, null: bool = True
) -> Iterator[str]:
    """Args: null: a null means that the field is left out."""
    for key, kind in kinds.items():
        if key not in config:
            if required:
                yield f"{where}{key} is missing"
        elif config[key] is None and null and not required:
            continue
        elif not kind.holds(config[key]):
            yield f"{where}{key} is {config[key]!r}, expected {kind.says}"


def _object(config: dict[str, Any], key: str) -> dict[str, Any]:
    found = config.get(key)
    return found if isinstance(found, dict) else {}
