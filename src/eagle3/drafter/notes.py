"""What looks odd in a drafter of others and may be right: only who trained it knows. Of ours, what can't be checked."""

from collections.abc import Iterator

import torch

from eagle3.config.origin import SNAPSHOT
from eagle3.drafter.check import added_settings
from eagle3.drafter.check_tensors import prefixed_names
from eagle3.drafter.folder import PREFIX, DrafterFiles
from eagle3.target.info import TargetInfo
from eagle3.target.weights import load_embedding
from eagle3.units import counted

USUAL_EPS = 1e-4
"""Of norms: from 1e-6 to 1e-5, nearly everywhere."""


def notes_on(files: DrafterFiles, target: TargetInfo, written_as: str | None = None) -> Iterator[str]:
    """Of a folder without a fault. Each ends with how to know.

    Args:
        written_as: the layout in which it is about to be exported, sglang or speculators.
    """
    if files.own:
        if "weights_sha256" not in files.own or "config" not in files.own:
            yield "it was exported before checksums were kept: a changed byte or setting can't be seen"
        if added := added_settings(files):
            ignored = f"{files.server} ignores what it does not know"
            yield f"config.json: {', '.join(added)} came after the export; {ignored}"
        return
    if (files.folder / SNAPSHOT).is_file():
        yield "it was made by eagle3, but its config.json has lost the `eagle3` block: it is looked at like anyone's"
    if files.layout == "sglang" and (prefixed := prefixed_names(files)):
        yield f"model.safetensors: {counted(len(prefixed), 'name')} with `{PREFIX}` in front: SGLang finds them so too"
    shape = files.shape()
    odd = [
        f"{key} is {ours}, the target's {theirs}"
        for key, ours, theirs in (
            ("rope_theta", shape.rope_theta, target.rope_theta),
            ("head_dim", shape.head_dim, target.head_dim),
        )
        if ours != theirs
    ]
    if shape.rms_norm_eps > USUAL_EPS:
        odd.append(f"rms_norm_eps is {shape.rms_norm_eps}, where 1e-6 to 1e-5 are usual")
    if shape.rope_scaling is not None:
        odd.append(f"rope_scaling is {shape.rope_scaling.type} with factor {shape.rope_scaling.factor}")
    if odd:
        yield f"config.json: {'; '.join(odd)}. Weights don't tell whether that is right; `evaluate=chain` measures it"
    if shape.context_length < target.context_length:
        least = f"--context-length {shape.context_length} or less"
        yield (
            f"config.json: max_position_embeddings is {shape.context_length}, the target's {target.context_length}: "
            f"a server starts with {least}, SGLang also with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        )
    if _has_own_embedding(files, target):
        right = {"speculators": "right only if it was trained", "sglang": "SGLang takes the target's in its place"}
        yield f"model.safetensors: embed_tokens.weight is not the target's embedding: {right[files.layout]}"
        lost = {"speculators": "has the target's embedding", "sglang": "has none, and SGLang takes the target's"}
        if written_as is not None:
            yield f"what is written {lost[written_as]}"


def _has_own_embedding(files: DrafterFiles, target: TargetInfo) -> bool:
    """Whether an embedding as wide as the target's is another one: SGLang does not take it, nor does an export."""
    own, shape = files.tensors.get("embed_tokens.weight"), files.shape()
    if own is None or shape.hidden_size != shape.target_hidden_size:  # of another width it is nobody else's
        return False
    return not torch.equal(own.bfloat16(), load_embedding(target).bfloat16())
