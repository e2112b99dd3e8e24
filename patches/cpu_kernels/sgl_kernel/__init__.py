"""Stand-in for SGLang's compiled kernels on a CPU; found only when this folder is on PYTHONPATH.

The published `sglang-kernel` wheel has CUDA binaries only, and SGLang imports names from it without a guard even
when it runs on a CPU. Plain prefill and decode under `--attention-backend torch_native` call none of them, so a
name that can be imported and refuses to be called is enough.
"""

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU implementation in patches/cpu_kernels")

    absent.__name__ = absent.__qualname__ = name
    return absent
