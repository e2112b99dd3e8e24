"""States in 8 bits: the formula of `eagle3.data.fp8`, which the server's environment may not have."""

import torch

LARGEST = 448.0
"""Of float8_e4m3fn."""
CHUNK_BYTES = 32 * 1024 * 1024
"""Of the float32 quotient, the largest temporary."""


def quantise(rows: torch.Tensor, peaks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows `[T, H]` as float8_e4m3fn `[T, H]` and scales `[T]` float32, to be multiplied with them.

    Args:
        peaks: `[T]` float32, the largest magnitude in each row. Where it is 0 the scale is 1; where it is not finite
            the result has no meaning.
    """
    # Divided by a tensor: a number's reciprocal would be multiplied with on a GPU, which rounds differently.
    scales = peaks / torch.full_like(peaks, LARGEST)
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (rows / scales[:, None]).to(torch.float8_e4m3fn), scales
