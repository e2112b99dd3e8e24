"""Rotary position embedding as SGLang's `get_rope` computes it: plain, linear, llama3 and YaRN."""

import math

import torch
from torch import Tensor

from eagle3.config.schema import RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """`[head_dim/2]` fp32 angles a position turns each pair by."""
    base = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return base
    if scaling.type == "linear":
        return base / scaling.factor
    if scaling.type == "llama3":
        return _llama3(base, scaling)
    return _yarn(base, head_dim, theta, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """What YaRN multiplies cosine and sine by (arXiv 2309.00071, section 3.4); 1 for the others."""
    if scaling is None or scaling.type != "yarn" or scaling.factor <= 1:
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1.0


def _llama3(base: Tensor, scaling: RopeScaling) -> Tensor:
    wavelength = 2 * math.pi / base
    low, high, original = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position
    assert original is not None
    smooth = 0.0 if low == high else (original / wavelength - low) / (high - low)
    mixed = (1 - smooth) * base / scaling.factor + smooth * base
    slow = torch.where(wavelength > original / low, base / scaling.factor, mixed)
    return torch.where(wavelength < original / high, base, slow)


def _yarn(base: Tensor, head_dim: int, theta: float, scaling: RopeScaling) -> Tensor:
    original = scaling.original_max_position
    assert original is not None

    def dimension(rotations: float) -> float:
        turns = original / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp(0, 1)
    return base / scaling.factor * (1 - keep) + base * keep


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns `x [n, heads, head_dim]` by the angles of `cos`, `sin` `[n, 1, head_dim/2]`; halves are paired (NeoX)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
