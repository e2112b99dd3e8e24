"""What a correct dump needs of the server: a tested version, and flags under that version's own names."""

import json
from collections.abc import Mapping
from typing import Any

from eagle3.errors import ConfigError
from eagle3.server.arguments import Installed
from eagle3.server.patches import dump_versions

ALLOW_UNTESTED = "SGLANG_HS_DUMP_ALLOW_UNTESTED"
"""Tells the plugin that another version is wanted."""

REFUSED = {
    "pp_size": "pipeline parallelism",
    "pipeline_parallel_size": "pipeline parallelism",
    "attn_cp_size": "context parallelism",
    "attention_context_parallel_size": "context parallelism",
    "dcp_size": "context parallelism",
    "decode_context_parallel_size": "context parallelism",
    "enable_prefill_cp": "context parallelism",
    "enable_prefill_context_parallel": "context parallelism",
    "enable_dsa_prefill_context_parallel": "context parallelism",
    "enable_nsa_prefill_context_parallel": "context parallelism",
    "enable_layernorm_sp": "sequence parallelism",
    "enable_two_batch_overlap": "two-batch overlap",
    "speculative_algorithm": "speculative decoding",
    "enable_flashinfer_allreduce_fusion": "all-reduce fusion (partial sums)",
    "flashinfer_allreduce_fusion_backend": "all-reduce fusion (partial sums)",
    "enable_aiter_allreduce_fusion": "all-reduce fusion (partial sums)",
    "cuda_graph_config": "CUDA graphs, which it may switch on again",
    "enable_piecewise_cuda_graph": "CUDA graphs",
    "enforce_piecewise_cuda_graph": "CUDA graphs",
    "enable_breakable_cuda_graph": "CUDA graphs",
    "json_model_override_args": "another config.json than the target's; write it into the target's",
    "config": "a file of flags, which nothing here has looked at",
}
"""Flags of any version that a dump cannot be taken with, unless they are off."""


_NOT_RECORDED = ("model_path", "host", "port")
_ALSO_EFFECTIVE = (
    "attention_backend",
    "chunked_prefill_size",
    "max_total_tokens",
    "quantization",
    "disable_radix_cache",
    "disable_cuda_graph",
    "disable_piecewise_cuda_graph",
    "cuda_graph_config",
    "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend",
    "tp_size",
    "dp_size",
    "attn_dp_size",
)
"""What a server decides by itself, or by another name than that of the flag."""


def required_flags(sglang: Installed) -> dict[str, Any]:
    """Radix cache, graphs, fusion and warm-up off."""
    flags: dict[str, Any] = {"skip_server_warmup": True, "skip_tokenizer_init": True, "disable_radix_cache": True}
    if sglang.takes("cuda_graph_backend_prefill"):  # 0.5.14 and newer
        flags |= {"cuda_graph_backend_decode": "disabled", "cuda_graph_backend_prefill": "disabled"}
    else:
        flags["disable_cuda_graph"] = True
        if sglang.takes("disable_piecewise_cuda_graph"):  # 0.5.9 has them only when asked for
            flags["disable_piecewise_cuda_graph"] = True
    if sglang.takes("enforce_disable_flashinfer_allreduce_fusion"):  # 0.5.9: the plugin's launcher does it
        flags["enforce_disable_flashinfer_allreduce_fusion"] = True
    return flags


def refuse(key: str, name: str, value: Any) -> None:
    """Raises ConfigError for a flag that a dump cannot be taken with."""
    if name == "load_format" and value == "dummy":
        raise ConfigError(f"{key}={value!r}: hidden states of random weights teach nothing; remove the key")
    off = value is None or value is False or (value == 1 and value is not True)
    if name in REFUSED and not off:
        raise ConfigError(f"{key}={value!r}: hidden states cannot be dumped with {REFUSED[name]}; remove the key")


def rank_key(version: str) -> str:
    """The name by which a request to this SGLang says which data-parallel rank is to compute it."""
    return "data_parallel_rank" if version == "0.5.9" else "routed_dp_rank"


def launch_module(sglang: Installed) -> str:
    """What `python -m` starts, so that the plugin is loaded."""
    return "sglang.launch_server" if dump_versions().loads_plugins(sglang.version) else "eagle3_hs_dump.launch"


def require_version(sglang: Installed, allow_untested: bool) -> Mapping[str, str]:
    """Environment that lets the plugin run; empty for a version that it was tested with.

    Raises:
        ConfigError: another version, and `server.allow_untested` is not set.
    """
    versions = dump_versions()
    if versions.hold(sglang.version):
        return {}
    if not allow_untested:
        raise ConfigError(
            f"server.python: its SGLang is {sglang.version}, and the dump was made for {versions.oldest} to "
            f"{versions.newest}. Install one of these in an environment of its own and name "
            "its interpreter in server.python; or set server.allow_untested=true"
        )
    return {ALLOW_UNTESTED: "1"}


def effective_flags(asked: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """What the server made of its flags, and what else tells how states were computed; for a manifest.

    Args:
        asked: flags of the command.
        info: the server's own `/server_info`. Names that its version does not have are left out.
    """
    names = [name for name in dict.fromkeys((*asked, *_ALSO_EFFECTIVE)) if name not in _NOT_RECORDED]
    found = {name: info.get(name, asked.get(name)) for name in names if name in info or name in asked}
    return json.loads(json.dumps(found, default=str))
