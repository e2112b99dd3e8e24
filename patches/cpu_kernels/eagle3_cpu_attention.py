"""SGLang plugin: what `--attention-backend torch_native` lacks.

DeepSeek-style attention: SGLang has no handler for torch_native and falls back to triton's, which sends a batch without
a cached prefix down the multi-head path; that one reads the latent KV pool as if it held heads and computes silent
garbage (relative error 7 against transformers). The absorbed method reads the pool as it is.

DP attention: ranks fill their batches up to a common size, and ask the back-end how long a request is that only fills
up. SGLang's back-end for CPUs with AMX says 1; torch_native has no answer, and the server would end at its first pass.
"""

import sys
from typing import Any

BACKEND = "torch_native"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if "sglang.srt.managers.scheduler" not in sys.modules:  # this process runs no model
        return
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    def absorbed(attn: Any, forward_batch: Any) -> Any:
        return handlers._dispatch_mla_subtype(attn, forward_batch)

    handlers.AttentionBackendRegistry.register(BACKEND, absorbed)
    for name in ("get_cpu_graph_seq_len_fill_value", "get_cuda_graph_seq_len_fill_value"):  # by version
        setattr(TorchNativeAttnBackend, name, lambda _: 1)
