"""Which conversations are held out: decided by each one's own prompt, so adding data moves none of the others."""

import hashlib

import numpy as np

from eagle3.data.offsets import IntArray


def held_out_sides(keys: list[bytes], share: float, seed: int) -> IntArray:
    """[n] uint8: 1 where held out. Equal keys (the same prompt with other answers) are on the same side.

    Both sides get something: if chance leaves one empty, the keys nearest to the border go there.

    Args:
        keys: identity of each conversation's prompt; at least two conversations.
        share: of the conversations to hold out, on average.
    """
    places = np.array([_place(key, seed) for key in keys])
    if len(set(keys)) == 1:  # nothing but answers to one prompt: those are what can be split
        places = np.array([_place(key + str(i).encode(), seed) for i, key in enumerate(keys)])
    held_out = places < share
    if not held_out.any():
        held_out = places == places.min()
    elif held_out.all():
        held_out = places != places.max()
    return held_out.astype(np.uint8)


def _place(key: bytes, seed: int) -> float:
    """Uniform in [0, 1)."""
    digest = hashlib.sha256(f"{seed}:".encode() + key).digest()
    return int.from_bytes(digest[:7]) / 2**56
