"""What a folder of safetensors holds, read from the headers; and single tensors out of it."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3.errors import ConfigError, Eagle3Error

if TYPE_CHECKING:
    import torch

    from eagle3.target.info import TargetInfo

MAX_HEADER = 100 * 2**20  # what the safetensors library itself allows


@dataclass(frozen=True)
class WeightFile:
    path: Path
    size: int
    """Bytes."""
    header: bytes
    tensors: dict[str, dict[str, Any]]
    """Name to {"dtype", "shape", "data_offsets"}."""


def read_header(path: Path) -> WeightFile:
    """The header of one safetensors file. Raises Eagle3Error for a file that is truncated or is none."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if start == b"version ":
                raise ValueError("a Git LFS pointer in its place: `git lfs pull`")
            if not 2 <= length <= MAX_HEADER:
                raise ValueError("no safetensors header")
            header = file.read(length)
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except FileNotFoundError:
        raise Eagle3Error(
            f"{path}: this file of the weights is missing (a copy broken off?). Fetch the folder again."
        ) from None
    except OSError as error:
        raise Eagle3Error(
            f"{path}: can't be read ({error.strerror}). Make it a file that this user may read."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Eagle3Error(
            f"{path}: not a readable safetensors file ({error}). Fetch or copy the folder again."
        ) from error
    if size != end:
        raise Eagle3Error(
            f"{path}: {size:,} bytes where its header says {end:,}: truncated or damaged. Fetch or copy it again."
        )
    return WeightFile(path, size, header, entries)


def weight_files(folder: Path) -> list[WeightFile]:
    """Every safetensors file of a model, in the order of names: those of the index if it has one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted({Path(name).as_posix() for name in weight_map.values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Eagle3Error(f"{index}: not a safetensors index ({error}). Fetch the folder again.") from error
    else:
        # `consolidated.safetensors` holds the same weights again under the vendor's own names.
        names = sorted(p.name for p in folder.glob("*.safetensors") if not p.name.startswith("consolidated"))
    if not names:
        raise Eagle3Error(
            f"{folder}: no *.safetensors there. The target is a folder of config.json, safetensors and a tokenizer; "
            "weights in another format are converted by loading them with transformers and save_pretrained()."
        )
    return [read_header(folder / name) for name in names]


def find_embedding(shapes: dict[str, list[int]], prefix: str) -> tuple[str, str]:
    """The name of the text model's embedding, and the prefix before `model.embed_tokens.weight`.

    `prefix` is config's `target.text_prefix`; empty looks for the only one there is. Names such as
    `model.layers.61.embed_tokens.weight` (a multi-token-prediction layer's copy) are not taken.
    """
    if prefix:
        for name in (f"{prefix}model.embed_tokens.weight", f"{prefix}embed_tokens.weight"):
            if name in shapes:
                return name, prefix
    else:
        found = [n for n in shapes if n.endswith("embed_tokens.weight") and ".layers." not in n]
        if "model.embed_tokens.weight" in found:
            return "model.embed_tokens.weight", ""
        if len(found) == 1:
            return found[0], found[0].removesuffix("embed_tokens.weight").removesuffix("model.")
    seen = sorted(n for n in shapes if "embed" in n)[:5]
    raise ConfigError(
        f"target.text_prefix={prefix!r}: no tensor named {prefix}model.embed_tokens.weight in the target's safetensors "
        f"(embeddings there: {', '.join(seen) or 'none'}). Set target.text_prefix to what comes before "
        "`model.embed_tokens.weight`, or to an empty string."
    )


def find_head(shapes: dict[str, list[int]], prefix: str) -> str | None:
    """The name of the text model's output head, or None where there is none (tied to the embedding)."""
    for name in (f"{prefix}lm_head.weight", "lm_head.weight"):
        if name in shapes:
            return name
    return None


def _load(info: "TargetInfo", name: str, rows: int) -> "torch.Tensor":
    from safetensors import safe_open

    for file in weight_files(info.path):
        if name in file.tensors:
            with safe_open(file.path, framework="pt") as tensors:
                # A few models pad the rows; the server's logits, and so the contract, have vocab_size of them.
                return tensors.get_slice(name)[:rows]
    raise Eagle3Error(f"{info.path}: no tensor {name}. Is the folder complete, and unchanged since it was read?")


def load_embedding(info: "TargetInfo") -> "torch.Tensor":
    """The target's token embedding `[V, H]`, in the dtype it is stored in."""
    return _load(info, info.embedding_key, info.vocab_size)


def load_lm_head(info: "TargetInfo") -> "torch.Tensor":
    """The target's output head `[V, H]`, in the dtype it is stored in; the embedding where they are tied."""
    return _load(info, info.lm_head_key, info.vocab_size)


def load_final_norm(info: "TargetInfo") -> "torch.Tensor":
    """The weight of the norm before the output head, `[H]`, in the dtype it is stored in."""
    return _load(info, info.embedding_key.removesuffix("embed_tokens.weight") + "norm.weight", info.hidden_size)
