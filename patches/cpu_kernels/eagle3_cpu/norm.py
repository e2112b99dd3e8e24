"""SGLang plugin: RMSNorm on a CPU without AMX in two passes over the states instead of eight.

SGLang's own fallback goes through float32 copies of everything and takes a sixth of a small model's prefill. Here the
residual is added and rounded first, as transformers does, and the scale is computed without a float32 square.
"""

from typing import Any

import torch

from . import runs_model


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension, computed in float32, given in x's dtype."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return x.float().mul_(scale).mul_(weight).to(x.dtype)


def _plain(norm: Any, x: torch.Tensor) -> bool:
    """None of the variants that a few models ask for."""
    return (
        x.dtype == torch.bfloat16
        and x.shape[-1] == norm.hidden_size
        and getattr(norm, "variance_size_override", None) is None
        and getattr(norm, "override_orig_dtype", None) is None
        and not getattr(norm, "cast_x_before_out_mul", False)
        and not getattr(norm, "fp32_residual", False)
    )


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`."""
    if not runs_model():
        return
    from sglang.srt.layers.layernorm import RMSNorm

    original = RMSNorm.forward_native  # what a CPU without AMX is dispatched to

    def forward_native(self: Any, x: torch.Tensor, residual: Any = None, *args: Any, **kwargs: Any) -> Any:
        if any(value is not None for value in (*args, *kwargs.values())) or not _plain(self, x):
            return original(self, x, residual, *args, **kwargs)
        if residual is None:
            return rms_norm(x, self.weight, self.variance_epsilon)
        residual = x + residual
        return rms_norm(residual, self.weight, self.variance_epsilon), residual

    RMSNorm.forward_native = forward_native
