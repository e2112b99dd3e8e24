"""What a server captures of the target for a drafter's folder, and whether that is what the drafter was trained on."""

from eagle3.config.validate import default_boundaries
from eagle3.drafter.capture import architecture_of, capture_ids, captured_boundaries
from eagle3.drafter.fields import IDS, OWN
from eagle3.drafter.folder import DrafterFiles
from eagle3.errors import ConfigError
from eagle3.target.info import TargetInfo


def boundaries_of(files: DrafterFiles, target: TargetInfo, sglang_version: str) -> list[int]:
    """What a server captures for this folder: SGLang of that version, or vLLM where the layout is speculators'."""
    if files.ids is None:
        return default_boundaries(target.num_layers)
    if files.layout == "speculators":
        return list(files.ids)
    return captured_boundaries(files.ids, architecture_of(target.path), target.num_layers, sglang_version)


def captures(files: DrafterFiles, target: TargetInfo, boundaries: list[int] | None, sglang_version: str) -> bool:
    """Whether the folder's capture ids are read as just these boundaries."""
    return files.ids is not None and boundaries_of(files, target, sglang_version) == boundaries


def boundary_problems(
    files: DrafterFiles,
    target: TargetInfo,
    trained_on: list[int] | None,
    sglang_version: str | None,
    corrected: bool = False,
) -> list[str]:
    """Args: corrected: `trained_on` is taken in the place of what config.json says."""
    own = files.own
    if trained_on is not None:
        impossible = _impossible(files, target, trained_on, f"the boundaries {trained_on}")
        if impossible or corrected:
            return impossible
    trained_on = trained_on or own.get("boundaries")
    version = sglang_version or own.get("sglang_version")
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
    if impossible := _impossible(files, target, found, f"{reader} reads {files.ids} as boundaries {found}"):
        return [f"config.json: {problem}" for problem in impossible]
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
            f"was trained on {found}, say so: --boundaries {','.join(map(str, found))}, or in run.py "
            f"layers.boundaries=[{','.join(map(str, found))}]"
        ]
    return []


def _impossible(files: DrafterFiles, target: TargetInfo, found: list[int], named: str) -> list[str]:
    """What no server would hand to this drafter, whatever it was trained on."""
    first, last = _capturable(files, target)
    if beyond := [b for b in found if not first <= b <= last]:
        return [f"{named}, of which {beyond} do not exist: there are {first} to {last}"]
    if sorted(set(found)) != found:
        once = "a server captures each once, in ascending order"
        return [f"{named}, which name one twice or are out of order: {once}"]
    wanted = files.shape(found).num_boundaries
    if len(found) != wanted:
        return [f"{named}, which are {len(found)}, but the drafter reads {wanted} (num_aux_hidden_states)"]
    return []


def _capturable(files: DrafterFiles, target: TargetInfo) -> tuple[int, int]:
    """SGLang's classes hand over what enters a layer, GptOss what leaves the last one too; vLLM has both ends."""
    if files.layout == "speculators":
        return 0, target.num_layers
    return 1, target.num_layers - (architecture_of(target.path) != "GptOssForCausalLM")


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
