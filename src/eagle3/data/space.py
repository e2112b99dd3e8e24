"""Bytes needed against bytes free, asked before anything is started."""

from pathlib import Path

from eagle3.data.layout import StateShape
from eagle3.errors import ConfigError
from eagle3.files.disk import GIB, free_bytes, gib, used_bytes

BYTES_PER_SEQUENCE = 64
"""Offset, sample id, checksums, and its share of headers and ledgers: an allowance."""
LESS = (
    "Set paths.artifacts to a larger disk, free some space, capture fewer layers (layers.capture), store 8 bits "
    "(dataset.dtype=fp8_e4m3), or take fewer conversations (dataset.limit)."
)
"""What to do about an extraction that does not fit."""


def dataset_bytes(tokens: int, hidden_size: int, states: int, dtype: str = "bfloat16", sequences: int = 0) -> int:
    """Bytes of a dataset with `states` states a token (the boundaries and the final one), token ids and masks included.

    Kimi-K2.5 with 17.3 M tokens, 4 states of 7,168 bfloat16: 924 GiB; fp8_e4m3: 462 GiB.
    """
    shape = StateShape(tuple(str(i) for i in range(states)), hidden_size, dtype)
    return tokens * shape.token_bytes + sequences * BYTES_PER_SEQUENCE


def require_space(needed: int, folder: Path, remedy: str = LESS) -> None:
    """Raises ConfigError when `needed` bytes, less what an interrupted extraction left in the folder, don't fit."""
    there, free = used_bytes(folder), free_bytes(folder)
    missing = needed - there - free
    if missing <= 0:
        return
    left = f" ({gib(there)} of them are there already)" if there >= GIB // 10 else ""
    raise ConfigError(
        f"{folder} needs {gib(needed)}{left}, and {gib(free)} are free on that disk: {gib(missing)} too few. " + remedy
    )
