"""Whether this SGLang, in this configuration, can be dumped from; and which rank writes."""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import NEWEST, OLDEST, DumpError

REFUSED = {
    "pp_size": "pipeline parallelism",
    "attn_cp_size": "context parallelism",
    "dcp_size": "decode context parallelism",
    "enable_prefill_cp": "context parallelism",
    "enable_prefill_context_parallel": "context parallelism",
    "enable_dsa_prefill_context_parallel": "context parallelism",
    "enable_nsa_prefill_context_parallel": "context parallelism",
    "enable_layernorm_sp": "sequence parallelism",
    "enable_two_batch_overlap": "two-batch overlap",
    "speculative_algorithm": "speculative decoding",
    "enable_flashinfer_allreduce_fusion": "all-reduce fusion, which leaves partial sums",
    "flashinfer_allreduce_fusion_backend": "all-reduce fusion, which leaves partial sums",
}
"""Arguments of any version that make rows missing, partial, or spread over ranks, unless they are off."""


class Rank(NamedTuple):
    tp: int
    attention_tp: int
    """Ranks of one attention group hold the same rows: the one with 0 writes."""
    attention_dp: int


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_version(version: str) -> None:
    """Raises DumpError outside the tested range, unless SGLANG_HS_DUMP_ALLOW_UNTESTED=1."""
    if os.environ.get("SGLANG_HS_DUMP_ALLOW_UNTESTED") == "1":
        return
    if not _numbers(OLDEST) <= _numbers(version) <= _numbers(NEWEST):
        raise DumpError(f"SGLang {version} is not one that the dump was tested with: {OLDEST} to {NEWEST}")


def effective(arguments: Any) -> Mapping[str, Any]:
    """What `ServerArgs` came to. From 0.5.19 on its attributes are what was asked for, and decisions are kept apart."""
    resolved = getattr(arguments, "resolved_dict", None)
    return vars(arguments) if resolved is None else resolved()


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises DumpError for a configuration in which rows would be missing, partial or out of order.

    Args:
        arguments: what `effective` gives. Versions differ in which names there are.
    """
    for name, what in REFUSED.items():
        value = arguments.get(name)
        if value is True or value not in (None, False, 0, 1):
            raise DumpError(f"hidden states cannot be dumped with {what} ({name}={value})")
    aiter = arguments.get("enable_aiter_allreduce_fusion")
    if aiter and not arguments.get("disable_aiter_allreduce_fusion_in_prefill"):
        raise DumpError("hidden states cannot be dumped with all-reduce fusion (enable_aiter_allreduce_fusion)")
    if not arguments["disable_radix_cache"]:
        raise DumpError("hidden states cannot be dumped with a radix cache: use disable_radix_cache")
    graphs = _graphs(arguments)
    if graphs:
        raise DumpError(f"hidden states cannot be dumped with CUDA graphs: {', '.join(graphs)}")


def _graphs(arguments: Mapping[str, Any]) -> list[str]:
    """The graphs that are on. Up to 0.5.13 there is a flag for each kind, then one setting for each phase."""
    phases = arguments.get("cuda_graph_config")
    if phases is None:
        on = {
            "disable_cuda_graph is off": not arguments["disable_cuda_graph"],
            "disable_piecewise_cuda_graph is off": not arguments.get("disable_piecewise_cuda_graph", True),
            "enable_piecewise_cuda_graph is on": arguments.get("enable_piecewise_cuda_graph", False),
        }
        return [text for text, present in on.items() if present]
    backends = {phase: _get(_get(phases, phase), "backend") for phase in ("decode", "prefill")}
    return [f"cuda_graph_config.{phase}.backend is {name}" for phase, name in backends.items() if name != "disabled"]


def _get(record: Any, name: str) -> Any:
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def streams(arguments: Mapping[str, Any]) -> int:
    """How many ranks will write: one for each replica and attention group.

    Up to 0.5.21 `dp_size` counts either; then `attn_dp_size` counts the groups of each of `dp_size` replicas.
    """
    return (arguments.get("dp_size") or 1) * (arguments.get("attn_dp_size") or 1)


def read_rank() -> Rank:
    """This process's place; SGLang moved it into one object in 0.5.14."""
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        from sglang.srt.distributed import get_tensor_model_parallel_rank
        from sglang.srt.layers import dp_attention

        return Rank(
            get_tensor_model_parallel_rank(),
            dp_attention.get_attention_tp_rank(),
            dp_attention.get_attention_dp_rank(),
        )
    parallel = get_parallel()
    return Rank(parallel.tp_rank, parallel.attn_tp_rank, parallel.attn_dp_rank)
