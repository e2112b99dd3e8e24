"""States in 8 bits: rows of float8_e4m3fn, each with one float32 scale; a row is what is stored times its scale.

The server's plugin quantises by the same formula, in `eagle3_hs_dump/quantise.py`, and can't import this one.
"""

import torch
from torch import Tensor

LARGEST = 448.0
"""Of float8_e4m3fn."""
CHUNK = 1 << 19
"""Numbers converted at a time: the temporaries, 6 bytes each, stay in the processor's cache."""


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[S, H]` as float8_e4m3fn `[S, H]` and scales `[S]` float32.

    The scale is the row's largest magnitude over 448; 1 for a row of zeros. In rows that are not finite the result has
    no meaning.
    """
    scales = torch.linalg.vector_norm(rows, ord=float("inf"), dim=-1, dtype=torch.float32) / LARGEST
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (rows / scales[:, None]).to(torch.float8_e4m3fn), scales


def dequantise(rows: Tensor, scales: Tensor, out: Tensor) -> None:
    """Rows `[S, H]` float8_e4m3fn on the CPU times scales `[S]`, rounded into `out [S, H]` bfloat16.

    Ten times as fast as torch's own conversion, which goes number by number: a float8 number shifted by seven bits is
    a float16 number 256 times too small, subnormal ones included. What `quantise` never makes, NaN, comes out as 480.
    """
    count = max(1, CHUNK // rows.shape[1])
    halves = torch.empty(min(count, len(rows)), rows.shape[1], dtype=torch.int16)
    wide = torch.empty(halves.shape, dtype=torch.float32)
    for begin in range(0, len(rows), count):
        part = slice(begin, min(begin + count, len(rows)))
        half, single = halves[: part.stop - begin], wide[: part.stop - begin]
        half.copy_(rows[part].view(torch.int8)).bitwise_left_shift_(7)
        half.bitwise_and_(~0x4000)  # the second copy of the sign that widening to 16 bits has made
        single.copy_(half.view(torch.float16)).mul_(256 * scales[part, None])
        out[part].copy_(single)
