"""Elementwise work between products as a few kernels on a GPU, where each operation alone would read its memory."""

from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

F = TypeVar("F", bound=Callable[..., Any])


def fused(varying: Mapping[int, tuple[int, ...]]) -> Callable[[F], F]:
    """Has `torch.compile` make kernels of a function whose first tensor is on a GPU; elsewhere it runs as written.

    So it does under `torch.use_deterministic_algorithms`: how a kernel sums depends on the batch that it was made for,
    and a cache may have one that was made for another.

    TORCH_COMPILE_DISABLE=1, torch's own switch, runs it as written everywhere: where no C compiler is installed.

    Args:
        varying: by argument, the dimensions whose size differs from batch to batch; kernels are made once for all.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any) -> Any:
            if not _pays(args[0]):
                return function(*args)
            for number, dimensions in varying.items():
                for dimension in dimensions if args[number] is not None else ():
                    torch._dynamo.maybe_mark_dynamic(args[number], dimension)
            return _compiled(function)(*args)

        return call  # type: ignore[return-value]

    return decorate


def recomputed(function: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    """`function(*args)`, where a compiled backward is to compute anew what goes into its matrix product.

    Elementwise work, so cheap beside keeping it: the product's own result is not computed again.
    """
    if not torch.compiler.is_compiling():
        return function(*args)
    return checkpoint(function, *args, use_reentrant=False)  # type: ignore[no-any-return]


def _pays(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and not torch.are_deterministic_algorithms_enabled()


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
