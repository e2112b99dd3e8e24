"""What is wrong with a drafter's tensors: names, sizes, types, values, and the draft vocabulary."""

import torch
from torch import Tensor

from eagle3.drafter.folder import PREFIX, DrafterFiles, unused_norms
from eagle3.drafter.model import Drafter
from eagle3.drafter.shape import DrafterShape
from eagle3.drafter.vocab import draft_ids_of
from eagle3.units import counted


def prefixed_names(files: DrafterFiles) -> list[str]:
    """Names that begin as a whole model's do."""
    return [name for name in files.stored if name.startswith(PREFIX)]


def prefix_problems(files: DrafterFiles) -> list[str]:
    """SGLang looks a name up with the prefix too where it does not know it without, so it finds all but the head, which
    has none; vLLM puts the prefix before every other name itself."""
    prefixed = prefixed_names(files)
    if files.layout == "speculators" and prefixed:
        return [
            f"model.safetensors: {counted(len(prefixed), 'name')} with `{PREFIX}` in front, such as {prefixed[0]}: "
            "vLLM puts that there itself, and would not find them; rename them"
        ]
    return [
        f"model.safetensors: {name} would be skipped: SGLang knows it as {name.removeprefix(PREFIX)} alone; rename it"
        for name in prefixed
        if name.startswith(f"{PREFIX}lm_head.")
    ]


def width_problems(files: DrafterFiles) -> list[str]:
    """Where all norms have another width than config.json says: the one mistake from which many others follow."""
    norms = ("norm.weight", "midlayer.hidden_norm.weight", "midlayer.post_attention_layernorm.weight")
    widths = {tuple(files.tensors[name].shape) for name in norms if name in files.tensors}
    found, said = widths.pop() if len(widths) == 1 else (), files.llama["hidden_size"]
    if len(found) != 1 or found[0] == said:
        return []
    return [f"config.json: hidden_size is {said}, but the weights are {found[0]} wide"]


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


def tensor_problems(files: DrafterFiles, shape: DrafterShape) -> list[str]:
    tensors = files.tensors
    # Each layer has more tensors than one: where it is not so, they are too few, or the number is a mistake.
    if shape.num_layers > len(tensors):
        return [f"config.json: num_hidden_layers is {shape.num_layers}, but there are {len(tensors)} tensors in all"]
    expected = expected_tensors(shape)
    optional, allowed = _leeway(files, shape)
    problems = []
    for name in sorted(expected.keys() - tensors.keys() - optional):
        problems.append(f"model.safetensors: {name} is missing; {files.server} would leave it random")
    for name in sorted(tensors.keys() - expected.keys() - allowed):
        problems.append(f"model.safetensors: {name} is unknown; {files.server} would skip it")
    for name in sorted(expected.keys() & tensors.keys()):
        size, dtype = expected[name]
        tensor = tensors[name]
        right = tensor.dtype == dtype or (not files.own and _alike(tensor.dtype, dtype))
        if tuple(tensor.shape) != size:
            problems.append(f"model.safetensors: {name} is {list(tensor.shape)}, expected {list(size)}")
        elif not right:
            problems.append(f"model.safetensors: {name} is {tensor.dtype}, expected {dtype}")
    return problems + [
        f"model.safetensors: {name} {fault}" for name in sorted(_used(files, shape)) if (fault := _dead(tensors[name]))
    ]


def _used(files: DrafterFiles, shape: DrafterShape) -> list[str]:
    """Weights that decide what is drafted."""
    unused = {"d2t", "t2d", *unused_norms(shape)}
    if not shape.uses_fc:
        unused.add("fc.weight")
    if files.layout == "sglang" and shape.hidden_size == shape.target_hidden_size:
        unused.add("embed_tokens.weight")  # SGLang takes the target's
    return [name for name in files.tensors if name not in unused]


def _dead(tensor: Tensor) -> str | None:
    if not tensor.is_floating_point():
        return None
    tensor = tensor.float() if tensor.element_size() == 1 else tensor  # there is no isfinite of 8 bits
    if not tensor.isfinite().all():
        return "has NaN or infinite values"
    # A bias begins as zeros, and may stay so.
    return "is all zeros" if tensor.ndim == 2 and tensor.numel() and not tensor.any() else None


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
    if files.norm_before_fc:
        allowed.add("input_norm.weight")
    if not shape.uses_fc:
        allowed.add("fc.weight")
    return optional, allowed


def _alike(found: torch.dtype, wanted: torch.dtype) -> bool:
    """Of others' drafters: what a server turns into the wanted type without a loss that matters."""
    if wanted == torch.int64:
        return found in (torch.int64, torch.int32, torch.int16)
    return found.is_floating_point == wanted.is_floating_point and not found.is_complex


def draft_vocabulary_problems(files: DrafterFiles, shape: DrafterShape) -> list[str]:
    """Of the two tensors where they have their size; whatever else is wrong with the folder."""
    offsets, mask = files.tensors.get("d2t"), files.tensors.get("t2d")
    if offsets is None or tuple(offsets.shape) != (shape.draft_vocab_size,) or not _alike(offsets.dtype, torch.int64):
        return []
    if mask is not None and tuple(mask.shape) != (shape.vocab_size,):
        mask = None
    return vocabulary_problems(offsets, mask, shape.vocab_size)


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
    if outside := [token for token in (int(ids.min()), int(ids.max())) if not 0 <= token < vocab_size]:
        return [f"model.safetensors: d2t leads to token {outside[0]}; the target's vocabulary has {vocab_size}, from 0"]
    return []
