"""Where every byte of a shard goes, known before the first state is computed.

A shard is a plain safetensors file. Its header, and so the offset of every row, follows from the number of its tokens
and sequences and the shape of the states; so several processes can write rows at their final place in any order.
"""

import json
import struct
from dataclasses import dataclass
from functools import cached_property

from eagle3.errors import DataError

FORMAT_VERSION = 1
DATA_ALIGNMENT = 4096
"""The data begins on a page; with the states first, their rows start on a page too."""
DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4)}
"""Name in configs and manifests -> (name in safetensors, bytes)."""
INDEX = ("offsets", "sample_ids", "checksums", "input_ids", "loss_mask")
"""The tensors of a shard that are not states."""
INDEX_BYTES_PER_TOKEN = 5
FINAL = "final"


def state_names(boundaries: list[int]) -> list[str]:
    """`["boundary.3", "boundary.31", ..., "final"]`, ascending."""
    return [f"boundary.{b}" for b in sorted(boundaries)] + [FINAL]


@dataclass(frozen=True)
class StateShape:
    """What one token's states are: the same throughout a dataset."""

    states: tuple[str, ...]
    hidden_size: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DataError(f"Stored type {self.dtype!r} is unknown; set dataset.dtype to one of {', '.join(DTYPES)}.")
        if self.row_bytes % 8:
            # The int64 tensors that follow the states would not be aligned.
            raise DataError(f"A hidden size of {self.hidden_size} is not a multiple of 4, which shards need.")

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one state."""
        return self.hidden_size * DTYPES[self.dtype][1]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in a shard: all states, token id and loss mask."""
        return self.row_bytes * len(self.states) + INDEX_BYTES_PER_TOKEN


@dataclass(frozen=True)
class Slot:
    """One tensor in a file."""

    offset: int
    """Bytes from the beginning of the file."""
    nbytes: int
    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ShardLayout:
    """The exact bytes of a shard of `sequences` sequences with `tokens` tokens in all."""

    shape: StateShape
    tokens: int
    sequences: int

    def _tensors(self) -> list[tuple[str, str, int, tuple[int, ...]]]:
        T, n, S = self.tokens, self.sequences, len(self.shape.states)
        code, size = DTYPES[self.shape.dtype]
        states = [(name, code, size, (T, self.shape.hidden_size)) for name in self.shape.states]
        return [
            *states,
            ("offsets", "I64", 8, (n + 1,)),
            ("sample_ids", "I64", 8, (n,)),
            ("checksums", "I64", 8, (n, S)),
            ("input_ids", "I32", 4, (T,)),
            ("loss_mask", "U8", 1, (T,)),
        ]

    @cached_property
    def _built(self) -> tuple[bytes, dict[str, Slot], int]:
        position, relative = 0, {}
        entries: dict[str, object] = {"__metadata__": {"eagle3.format_version": str(FORMAT_VERSION)}}
        for name, code, size, shape in self._tensors():
            nbytes = size
            for extent in shape:
                nbytes *= extent
            entries[name] = {"dtype": code, "shape": shape, "data_offsets": [position, position + nbytes]}
            relative[name] = Slot(position, nbytes, code, shape)
            position += nbytes
        text = json.dumps(entries, separators=(",", ":")).encode()
        padded = -(-(8 + len(text)) // DATA_ALIGNMENT) * DATA_ALIGNMENT - 8
        header = struct.pack("<Q", padded) + text.ljust(padded)
        slots = {
            name: Slot(slot.offset + len(header), slot.nbytes, slot.dtype, slot.shape)
            for name, slot in relative.items()
        }
        return header, slots, len(header) + position

    @property
    def header(self) -> bytes:
        """Everything before the data: length, JSON, and spaces up to the alignment."""
        return self._built[0]

    @property
    def slots(self) -> dict[str, Slot]:
        return self._built[1]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self._built[2]

    @property
    def index_offset(self) -> int:
        """Where the states end and the other tensors begin; from here on a file is small."""
        return self.slots["offsets"].offset

    @property
    def state_offsets(self) -> dict[str, int]:
        return {name: self.slots[name].offset for name in self.shape.states}

    def rows(self, state: str, row: int, length: int) -> tuple[int, int]:
        """(offset in the file, bytes) of `length` rows of one state from `row` on."""
        return self.slots[state].offset + row * self.shape.row_bytes, length * self.shape.row_bytes
