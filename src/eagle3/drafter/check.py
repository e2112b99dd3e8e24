"""What is wrong with a drafter's folder for a target, in words: ours, or one that someone else made.

A server says nothing of all this: it skips keys that it does not know, leaves missing ones random, and captures other
layers than were trained on. It answers as well as ever, and nothing is accepted.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3.config.validate import default_boundaries
from eagle3.drafter.capture import architecture_of, capture_ids, captured_boundaries
from eagle3.drafter.folder import IDS, OWN, PREFIX, DrafterFiles, read_drafter, unused_norms
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import draft_ids_of
from eagle3.errors import ConfigError, Eagle3Error
from eagle3.target.info import TargetInfo

ARCHITECTURE, SPECULATORS_ARCHITECTURE = "LlamaForCausalLMEagle3", "Eagle3Speculator"


def check_drafter(
    folder: Path, target: TargetInfo, trained_on: list[int] | None = None, sglang_version: str | None = None
) -> list[str]:
    """What is wrong; empty when a server would serve the drafter as it was trained.

    Args:
        trained_on: the boundaries of a drafter of others, where they are known; ours say it themselves.
        sglang_version: the SGLang that will serve it; of ours, the one that it was exported for.
    """
    try:
        files = read_drafter(folder)
        shape = files.shape()
    except Eagle3Error as error:
        return [str(error)]
    except (KeyError, TypeError, ValueError) as error:
        return [f"config.json: {error} is missing or of the wrong kind"]
    problems = _config_problems(files, target) + _switch_problems(files)
    problems += _boundary_problems(files, target, trained_on, sglang_version)
    problems += _prefix_problems(files)
    tensor_problems = _tensor_problems(files, shape)
    return problems + tensor_problems + (_vocabulary_problems(files, shape) if not tensor_problems else [])


def _config_problems(files: DrafterFiles, target: TargetInfo) -> list[str]:
    wanted: dict[str, Any] = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": target.vocab_size,
    }
    problems = [
        _unlike(key, files.llama.get(key), value)
        for key, value in wanted.items()
        if files.llama.get(key, "silu" if key == "hidden_act" else None) != value
    ]
    architecture = ARCHITECTURE if files.layout == "sglang" else SPECULATORS_ARCHITECTURE
    if files.config.get("architectures") != [architecture]:
        problems.append(_unlike("architectures", files.config.get("architectures"), [architecture]))
    width = files.config.get("target_hidden_size") or files.llama["hidden_size"]
    if width != target.hidden_size:
        problems.append(_unlike("target_hidden_size", width, target.hidden_size))
    if files.layout == "sglang" and files.config.get("tie_word_embeddings"):
        problems.append("config.json: tie_word_embeddings is True: SGLang would take the embedding for the head")
    return problems


def _unlike(key: str, found: object, wanted: object) -> str:
    whose = " (the target's)" if key in ("vocab_size", "target_hidden_size") else ""
    return f"config.json: {key} is {found!r}, expected {wanted!r}{whose}"


def _switch_problems(files: DrafterFiles) -> list[str]:
    """Norms that config.json switches otherwise than the drafter was trained; only ours say how that was."""
    problems = []
    has = any(name.startswith("fc_norm.") for name in files.tensors)
    switched = bool(files.config.get("fc_norm") or files.config.get("use_aux_norm"))
    if has and not switched:
        problems.append("config.json: fc_norm is off, but fc_norm.* has weights: a server would skip them")
    for name, trained in (files.own.get("switches") or {}).items():
        if bool(files.config.get(name)) != trained:
            problems.append(f"config.json: {name} is {files.config.get(name)!r}, but it was trained with {trained}")
    if files.config.get("norm_before_fc") and "input_norm.weight" not in files.tensors:
        problems.append("config.json: norm_before_fc is on, but there is no input_norm.weight")
    return problems


def boundaries_of(files: DrafterFiles, target: TargetInfo, sglang_version: str) -> list[int]:
    """What a server captures for this folder: SGLang of that version, or vLLM where the layout is speculators'."""
    if files.ids is None:
        return default_boundaries(target.num_layers)
    if files.layout == "speculators":
        return list(files.ids)
    return captured_boundaries(files.ids, architecture_of(target.path), target.num_layers, sglang_version)


def _boundary_problems(
    files: DrafterFiles, target: TargetInfo, trained_on: list[int] | None, version: str | None
) -> list[str]:
    own = files.own
    trained_on = trained_on or own.get("boundaries")
    version = version or own.get("sglang_version")
    if files.layout == "sglang" and files.ids is None:
        if files.config.get(IDS):
            where = "at the top level of config.json, where SGLang does not look for what to capture"
            return [f"config.json: {IDS} is {where}; it belongs into eagle_config. SGLang would {_default(target)}"]
        if not own and trained_on in (None, _defaults(target)):
            return []  # others leave them out and mean just that
        return [f"config.json: no eagle_config.{IDS}; SGLang would {_default(target)}"]
    if files.layout == "sglang" and version is None:
        return [f"config.json: no {OWN}.sglang_version, so what its capture ids mean is unknown; say --sglang-version"]
    found = boundaries_of(files, target, version or "")
    reader = f"SGLang {version}" if files.layout == "sglang" else "vLLM"
    beyond = [b for b in found if not 0 <= b <= target.num_layers]
    if beyond:
        return [f"config.json: {reader} reads {files.ids} as boundaries {found}, of which {beyond} do not exist"]
    if trained_on is not None:
        if found == trained_on:
            return []
        off = _one_off(found, trained_on)
        return [
            f"config.json: {reader} reads the capture ids {files.ids} as boundaries {found}, "
            f"but the drafter was trained on {trained_on}{off}"
        ]
    shifted = [b - 1 for b in found]
    if files.layout == "sglang" and shifted == _defaults(target) == files.ids:
        return [
            f"config.json: SGLang {version} reads the capture ids {files.ids} as boundaries {found}. These ids are the "
            f"default boundaries, so they are probably one off: {_wanted_ids(target, shifted, version or '')}. If it "
            f"was trained on {found}, say so: --boundaries {','.join(map(str, found))}"
        ]
    return []


def _one_off(found: list[int], trained_on: list[int]) -> str:
    by = {f - t for f, t in zip(found, trained_on, strict=False)} if len(found) == len(trained_on) else set()
    return f": off by {by.pop():+d}" if len(by) == 1 else ""


def _wanted_ids(target: TargetInfo, boundaries: list[int], version: str) -> str:
    try:
        ids = capture_ids(boundaries, architecture_of(target.path), target.num_layers, version)
    except ConfigError as error:
        return str(error)
    return f"boundaries {boundaries} are written {ids}"


def _defaults(target: TargetInfo) -> list[int] | None:
    try:
        return default_boundaries(target.num_layers)
    except ConfigError:
        return None


def _default(target: TargetInfo) -> str:
    return f"capture its default boundaries {_defaults(target) or ''}".rstrip()


def _prefix_problems(files: DrafterFiles) -> list[str]:
    prefixed = [name for name in files.stored if name.startswith(PREFIX)]
    if not prefixed:
        return []
    return [
        f"{len(prefixed)} names begin with `{PREFIX}` ({prefixed[0]}, ...): a drafter's begin with fc, midlayer, "
        "layers, norm and lm_head. A server skips those that it does not know; rename them"
    ]


def expected_tensors(shape: DrafterShape) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Every key of model.safetensors in SGLang's layout, with its size and type."""
    with torch.device("meta"):
        state = Drafter(shape).state_dict()
    expected = {name: (tuple(tensor.shape), torch.bfloat16) for name, tensor in state.items()}
    if expected.pop("embed_proj.weight", None) is not None:
        expected["embed_tokens.weight"] = ((shape.vocab_size, shape.hidden_size), torch.bfloat16)
    expected |= dict.fromkeys(unused_norms(shape), ((shape.hidden_size,), torch.bfloat16))
    expected["d2t"] = ((shape.draft_vocab_size,), torch.int64)
    expected["t2d"] = ((shape.vocab_size,), torch.bool)
    return expected


def _tensor_problems(files: DrafterFiles, shape: DrafterShape) -> list[str]:
    expected, tensors = expected_tensors(shape), files.tensors
    optional, allowed = _leeway(files, shape)
    problems = []
    for name in sorted(expected.keys() - tensors.keys() - optional):
        problems.append(f"model.safetensors: {name} is missing; SGLang would leave it random")
    for name in sorted(tensors.keys() - expected.keys() - allowed):
        problems.append(f"model.safetensors: {name} is unknown; SGLang would skip it")
    for name in sorted(expected.keys() & tensors.keys()):
        size, dtype = expected[name]
        tensor = tensors[name]
        right = tensor.dtype == dtype or (not files.own and _alike(tensor.dtype, dtype))
        if tuple(tensor.shape) != size:
            problems.append(f"model.safetensors: {name} is {list(tensor.shape)}, expected {list(size)}")
        elif not right:
            problems.append(f"model.safetensors: {name} is {tensor.dtype}, expected {dtype}")
        elif tensor.is_floating_point() and not tensor.isfinite().all():
            problems.append(f"model.safetensors: {name} has NaN or infinite values")
    return problems


def _leeway(files: DrafterFiles, shape: DrafterShape) -> tuple[set[str], set[str]]:
    """(names that may be missing, further names that may be there) without changing what is served."""
    optional, allowed = set[str](), set[str]()
    whole = shape.draft_vocab_size == shape.vocab_size
    if files.own and files.layout == "sglang":
        return optional, allowed
    optional |= {"t2d", *unused_norms(shape)} | ({"d2t"} if whole else set())
    allowed |= {"embed_tokens.weight"}  # a server takes the target's, where the widths are equal
    if files.config.get("draft_vocab_size", 0) is None:
        optional.add("lm_head.weight")  # SGLang takes the target's
    if files.config.get("norm_before_fc"):
        allowed.add("input_norm.weight")
    if not shape.uses_fc:
        allowed.add("fc.weight")
    return optional, allowed


def _alike(one: torch.dtype, other: torch.dtype) -> bool:
    return one.is_floating_point == other.is_floating_point


def _vocabulary_problems(files: DrafterFiles, shape: DrafterShape) -> list[str]:
    if "d2t" not in files.tensors:
        return []
    return vocabulary_problems(files.tensors["d2t"], files.tensors.get("t2d"), shape.vocab_size)


def vocabulary_problems(offsets: Tensor, mask: Tensor | None, vocab_size: int) -> list[str]:
    """Of `d2t [D]` (offsets, not ids) against `t2d [V]`, which SGLang does not read and others leave out."""
    absolute = ["model.safetensors: d2t holds target ids; SGLang reads offsets (target id minus draft id)"]
    ids = draft_ids_of(offsets)
    if mask is not None:
        marked = mask.bool().nonzero()[:, 0]
        if torch.equal(ids, marked):
            return []
        if torch.equal(offsets, marked):
            return absolute
        return ["model.safetensors: d2t does not list, in order, the tokens that t2d marks"]
    steps = offsets.diff()
    # As offsets, no two neighbouring tokens of the vocabulary would be drafted: nobody's choice, but that of plain ids.
    if len(steps) and bool((steps > 0).all()):
        return absolute
    if bool((steps < 0).any()):
        return ["model.safetensors: d2t is not ascending: its draft tokens are out of order or named twice"]
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return [f"model.safetensors: d2t leads to token {int(ids.max())}; the target's vocabulary has {vocab_size}"]
    return []
