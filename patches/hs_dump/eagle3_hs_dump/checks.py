"""Whether this SGLang, in this configuration, can be dumped from; and which rank writes."""

import os
import re
from typing import Any, NamedTuple

from . import NEWEST, OLDEST, DumpError


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


def check_arguments(arguments: Any) -> None:
    """Raises DumpError for a configuration in which rows would be missing, partial or out of order."""
    refused = {
        "pipeline parallelism (pp_size)": getattr(arguments, "pp_size", 1) > 1,
        "context parallelism (attn_cp_size)": (getattr(arguments, "attn_cp_size", 1) or 1) > 1,
        "decode context parallelism (dcp_size)": (getattr(arguments, "dcp_size", 1) or 1) > 1,
        "two-batch overlap (enable_two_batch_overlap)": getattr(arguments, "enable_two_batch_overlap", False),
        "speculative decoding (speculative_algorithm)": getattr(arguments, "speculative_algorithm", None),
        "a radix cache (use disable_radix_cache)": not getattr(arguments, "disable_radix_cache", True),
    }
    for name in ("prefill_context_parallel", "dsa_prefill_context_parallel", "nsa_prefill_context_parallel"):
        refused[f"context parallelism (enable_{name})"] = getattr(arguments, f"enable_{name}", False)
    refused["context parallelism (enable_prefill_cp)"] = getattr(arguments, "enable_prefill_cp", False)
    for what, present in refused.items():
        if present:
            raise DumpError(f"hidden states cannot be dumped with {what}")


def read_rank() -> Rank:
    """This process's place; SGLang moved it into one object in 0.5.14 or so."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return Rank(parallel.tp_rank, parallel.attn_tp_rank, parallel.attn_dp_rank)
    except (ImportError, AttributeError):
        from sglang.srt.distributed import get_tensor_model_parallel_rank
        from sglang.srt.layers import dp_attention

        return Rank(
            get_tensor_model_parallel_rank(),
            dp_attention.get_attention_tp_rank(),
            dp_attention.get_attention_dp_rank(),
        )
