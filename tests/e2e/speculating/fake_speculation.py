"""SGLang plugin for the fakes beside it: its Intel AMX attention, which speculates, under the name `torch_native`.

SGLang takes torch_native wherever the CPU has no AMX, and has no drafter's attention of that name. What that backend
calls is in `sgl_kernel`, beside this file.
"""

import sys
from collections.abc import Callable
from typing import Any

NAME, REAL = "torch_native", "intel_amx"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if "sglang.srt.managers.scheduler" not in sys.modules:  # this process runs no model
        return
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    ATTENTION_BACKENDS[NAME] = ATTENTION_BACKENDS[REAL]
    original = DraftBackendFactory._create_backend

    def create(factory: Any, name: str, backends: dict[str, Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
        return original(factory, name, {**backends, NAME: backends[REAL]}, *args, **kwargs)

    DraftBackendFactory._create_backend = create
