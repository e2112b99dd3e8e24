"""What is wrong with a drafter's folder for a target, in words: ours, or one that someone else made.

A server says nothing of all this: it skips keys that it does not know, leaves missing ones random, and captures other
layers than were trained on. It answers as well as ever, and nothing is accepted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3.drafter.capture import architecture_of
from eagle3.drafter.check_boundaries import boundary_problems
from eagle3.drafter.check_tensors import draft_vocabulary_problems, prefix_problems, tensor_problems, width_problems
from eagle3.drafter.fields import ANOTHER_KIND, CHANGES_SERVING, IDS, OWN, QUANTISED, FaultyDrafterError, weights_sha256
from eagle3.drafter.folder import ARCHITECTURE, SPECULATORS_ARCHITECTURE, DrafterFiles, read_drafter
from eagle3.target.info import TargetInfo


def check_drafter(
    folder: Path,
    target: TargetInfo,
    trained_on: list[int] | None = None,
    sglang_version: str | None = None,
    corrected: bool = False,
) -> list[str]:
    """What is wrong; empty when a server would serve the drafter as it was trained.

    Args:
        trained_on: the boundaries of a drafter of others, where they are known; ours say it themselves.
        sglang_version: the SGLang that will serve it; of ours, the one that it was exported for.
        corrected: `trained_on` is taken in the place of what config.json says.
    """
    try:
        files = read_drafter(folder)
    except FaultyDrafterError as error:
        return error.faults
    return problems_of(files, target, trained_on, sglang_version, corrected)


def problems_of(
    files: DrafterFiles,
    target: TargetInfo,
    trained_on: list[int] | None = None,
    sglang_version: str | None = None,
    corrected: bool = False,
) -> list[str]:
    """`check_drafter` of a folder that was read; what others follow from comes before them."""
    shape = files.shape(trained_on if corrected else None)
    config = [*width_problems(files), *_config_problems(files, target), *_switch_problems(files)]
    config += [problem for key, problem in _record_problems(files) if not any(f" {key} is " in said for said in config)]
    config += boundary_problems(files, target, trained_on, sglang_version, corrected)
    tensors = [*prefix_problems(files), *tensor_problems(files, shape), *draft_vocabulary_problems(files, shape)]
    return config + (tensors or _changed_weights(files))


def another_target(files: DrafterFiles, target: TargetInfo) -> list[str]:
    """Ours name the target that they were trained for."""
    trained_for = files.own.get("target") or {}
    if trained_for.get("fingerprint") in (None, target.fingerprint):
        return []
    name = f"{trained_for.get('name')}, which is " if trained_for.get("name") else ""
    return [f"it was trained for {name}another model than {target.path}, or that has changed since (fingerprints)"]


def _config_problems(files: DrafterFiles, target: TargetInfo) -> Iterator[str]:
    wanted: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu", "vocab_size": target.vocab_size}
    for key, value in wanted.items():
        if files.llama.get(key, "silu" if key == "hidden_act" else None) != value:
            yield _unlike(key, files.llama.get(key), value)
    architecture = ARCHITECTURE if files.layout == "sglang" else SPECULATORS_ARCHITECTURE
    if files.config.get("architectures") != [architecture]:
        yield _unlike("architectures", files.config.get("architectures"), [architecture])
    width = files.config.get("target_hidden_size") or files.llama["hidden_size"]
    if width != target.hidden_size:
        yield _unlike("target_hidden_size", width, target.hidden_size)
    if files.layout == "speculators":
        yield from _speculators_problems(files.config, target)
        return
    if files.config.get("tie_word_embeddings"):
        yield "config.json: tie_word_embeddings is True: SGLang would take the embedding for the head"
    if (files.config.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        yield (
            "config.json: eagle_config.use_aux_hidden_state is False: SGLang would hand over its last hidden state "
            "instead of those of the boundaries"
        )
    if files.config.get("norm_before_residual"):
        yield (
            "config.json: norm_before_residual is True: it was trained to carry the normed state past the layer, which "
            "SGLang does not know and would not do"
        )
    for name, harmless in ANOTHER_KIND.items():
        if files.config.get(name) not in (None, harmless):
            yield f"config.json: {name} is {files.config[name]!r}: such a drafter is not known here, nor can be checked"
    for name in QUANTISED:
        if (files.folder / name).exists():
            yield f"{name}: is there, so that SGLang would take the weights for quantised ones; remove it"
    if files.config.get("bias"):
        yield "config.json: bias is True: SGLang would give fc a bias too; such a drafter is not known here"


def _speculators_problems(config: dict[str, Any], target: TargetInfo) -> Iterator[str]:
    """vLLM picks the kind of drafter by these, and the target by its class."""
    described = config.get("speculators_config") or {}
    kinds = {
        "speculators_model_type": config["speculators_model_type"],
        "speculators_config.algorithm": described.get("algorithm") or "eagle3",
    }
    yield from (_unlike(key, found, "eagle3") for key, found in kinds.items() if found != "eagle3")
    named, is_a = (described.get("verifier") or {}).get("architectures"), architecture_of(target.path)
    if named and is_a not in named:
        yield _unlike("speculators_config.verifier.architectures", named, [is_a])


def _unlike(key: str, found: object, wanted: object) -> str:
    whose = " (the target's)" if key in ("vocab_size", "target_hidden_size") or "verifier" in key else ""
    return f"config.json: {key} is {found!r}, expected {wanted!r}{whose}"


def _switch_problems(files: DrafterFiles) -> Iterator[str]:
    """Norms that config.json switches otherwise than the weights are."""
    has = any(name.startswith("fc_norm.") for name in files.tensors)
    if has and not files.shape().fc_norm:
        yield f"config.json: fc_norm is off, but fc_norm.* has weights: {files.server} would skip them"
    if files.norm_before_fc and "input_norm.weight" not in files.tensors:
        yield "config.json: norm_before_fc is on, but there is no input_norm.weight"


def _record_problems(files: DrafterFiles) -> Iterator[tuple[str, str]]:
    """(key, problem): what config.json says otherwise than when it was exported; of ours alone."""
    written = files.own.get("config")
    if written is not None:
        yield from _differences(written, _settings(files))


def added_settings(files: DrafterFiles) -> list[str]:
    """Keys of config.json that were not exported and that no server reads, as far as is known; of ours alone."""
    written = files.own.get("config")
    return [] if written is None else list(_added(written, _settings(files)))


def _settings(files: DrafterFiles) -> dict[str, Any]:
    return {key: value for key, value in files.config.items() if key != OWN}


def _added(written: dict[str, Any], found: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in found.items():
        was = written.get(key)
        if isinstance(was, dict) and isinstance(value, dict):
            yield from _added(was, value, f"{above}{key}.")
        elif key not in written and not _changes_serving(key, value, found, above):
            yield f"{above}{key}"


def _changes_serving(key: str, value: object, beside: dict[str, Any], above: str) -> bool:
    """Of a key that was added."""
    if key == "dtype" and value == beside.get("torch_dtype"):  # its newer name
        return False
    return value is not None and (key in CHANGES_SERVING or "rope_" in above)


def _differences(written: dict[str, Any], found: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key in dict.fromkeys((*written, *found)):
        name, was, is_now = f"{above}{key}", written.get(key), found.get(key)
        if key == IDS:
            continue  # other ids may mean the same: `boundary_problems` knows
        if isinstance(was, dict) and isinstance(is_now, dict):
            yield from _differences(was, is_now, f"{name}.")
        elif key not in found:
            yield name, f"config.json: {name} is gone, but it was exported with {was!r}"
        elif key not in written:
            if _changes_serving(key, is_now, found, above):
                yield name, f"config.json: {name} is {is_now!r}, but it was exported without"
        elif was != is_now:
            yield name, f"config.json: {name} is {is_now!r}, but it was exported with {was!r}"


def _changed_weights(files: DrafterFiles) -> list[str]:
    """Bytes that no other check sees; of ours alone."""
    wanted = files.own.get("weights_sha256")
    if wanted is None:
        return []
    if [path.name for path in files.weights] != ["model.safetensors"]:
        names = ", ".join(path.name for path in files.weights)
        return [f"its weights are in {names}, but it was exported with model.safetensors alone"]
    if weights_sha256(files.weights[0]) == wanted:
        return []
    return ["model.safetensors: its bytes are not those that were exported (sha256)"]
