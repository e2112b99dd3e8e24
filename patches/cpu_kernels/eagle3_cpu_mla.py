"""SGLang plugin: DeepSeek-style attention under `--attention-backend torch_native`.

SGLang has no handler for torch_native and falls back to triton's, which sends a batch without a cached prefix down
the multi-head path; that one reads the latent KV pool as if it held heads and computes silent garbage (relative error
7 against transformers). The absorbed method reads the pool as it is.
"""

import sys
from typing import Any

BACKEND = "torch_native"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if "sglang.srt.managers.scheduler" not in sys.modules:  # this process runs no model
        return
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    def absorbed(attn: Any, forward_batch: Any) -> Any:
        return handlers._dispatch_mla_subtype(attn, forward_batch)

    handlers.AttentionBackendRegistry.register(BACKEND, absorbed)
