"""What SGLang's capture ids mean: the one place that knows, besides the server's own read-back.

A drafter's config names ids; `set_eagle3_layers_to_capture(ids)` of the target's class turns them into boundaries.
Nearly every class adds 1. DeepSeek's (and those that share its code) adds 1 only when the first id is 1 from SGLang
0.5.13 on, and always before; GptOss takes ids as they are when they include the number of layers.
"""

import json
from pathlib import Path

from packaging.version import InvalidVersion, Version

from eagle3.drafter.shape import DrafterShape
from eagle3.errors import ConfigError, Eagle3Error

LIKE_DEEPSEEK = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
AS_THEY_ARE_SINCE = Version("0.5.13")
DRAFTERS_AS_CONFIGURED_SINCE = Version("0.5.12")
"""Before, a drafter is one layer, it reads three states, and there are no norms but the plain ones."""
BOUNDARIES_BEFORE = 3


def captured_boundaries(ids: list[int], architecture: str, num_layers: int, sglang_version: str) -> list[int]:
    """The boundaries that a server captures for `eagle_aux_hidden_state_layer_ids = ids`."""
    if architecture in LIKE_DEEPSEEK and _version(sglang_version) >= AS_THEY_ARE_SINCE and ids[0] != 1:
        return list(ids)
    if architecture == "GptOssForCausalLM" and max(ids) == num_layers:
        return list(ids)
    return [i + 1 for i in ids]


def capture_ids(boundaries: list[int], architecture: str, num_layers: int, sglang_version: str) -> list[int]:
    """The ids for which that server captures `boundaries`; of two spellings the one that every version reads alike.

    Raises ConfigError where no ids do: boundaries from 1 on, with DeepSeek's rule.
    """
    for ids in ([b - 1 for b in boundaries], list(boundaries)):
        if captured_boundaries(ids, architecture, num_layers, sglang_version) == list(boundaries):
            return ids
    raise ConfigError(
        f"layers.boundaries={boundaries}: SGLang {sglang_version} cannot capture these for {architecture}, "
        "which reads ids beginning with 1 as boundaries beginning with 2. Let the first boundary be 2 or more."
    )


def architecture_of(target: Path) -> str:
    """`architectures[0]` of a target's config.json: the class that SGLang serves it with."""
    file = target / "config.json"
    try:
        names = json.loads(file.read_text()).get("architectures") or []
    except (OSError, ValueError, AttributeError) as error:
        raise Eagle3Error(
            f"{file}: not a model's config ({error}). Fetch or copy the target's folder again."
        ) from error
    if not names:
        raise Eagle3Error(
            f"{file}: no `architectures`, so the meaning of capture ids is unknown. Add the model's class."
        )
    return str(names[0])


def not_served(shape: DrafterShape, sglang_version: str) -> list[str]:
    """What that version's `LlamaForCausalLMEagle3` does not have; it would serve another drafter, without a word."""
    if _version(sglang_version) >= DRAFTERS_AS_CONFIGURED_SINCE:
        return []
    problems = [f"{name} is on" for name in ("fc_norm", "norm_output") if getattr(shape, name)]
    if shape.num_layers > 1:
        problems.append(f"it has {shape.num_layers} layers")
    if shape.num_boundaries != BOUNDARIES_BEFORE:
        problems.append(f"it reads {shape.num_boundaries} boundaries, not {BOUNDARIES_BEFORE}")
    since = f"SGLang {sglang_version} has no such drafter; {DRAFTERS_AS_CONFIGURED_SINCE} and newer have"
    return [f"{problem}: {since}" for problem in problems]


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise ConfigError(f"sglang_version={text!r}: not a version; give one like 0.5.23.") from None
