"""Where every byte of a shard goes, known before the first state is computed.

A shard is a plain safetensors file. Its header, and so the offset of every row, follows from the number of its tokens
and sequences and the shape of the states; so several processes can write rows at their final place in any order.
"""

import json
import struct
from dataclasses import dataclass, replace
from functools import cached_property

from eagle3.errors import DataError

FORMAT_VERSION = 1
DATA_ALIGNMENT = 4096
"""The data begins on a page; with the states first, their rows start on a page too."""
FP8 = "fp8_e4m3"
DTYPES = {"bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4), FP8: ("F8_E4M3", 1)}
"""Name in configs and manifests -> (name in safetensors, bytes)."""
SCALE_CODE, SCALE_BYTES = "F32", 4
"""Of the scale that a row in 8 bits is to be multiplied with."""
INDEX = ("offsets", "sample_ids", "checksums", "input_ids", "loss_mask")
"""The tensors of a shard that are neither states nor their scales."""
INDEX_BYTES_PER_TOKEN = 5
FINAL = "final"


def state_names(boundaries: list[int]) -> list[str]:
    """`["boundary.3", "boundary.31", ..., "final"]`, ascending."""
    return [f"boundary.{b}" for b in sorted(boundaries)] + [FINAL]


def scale_name(state: str) -> str:
    """The tensor of a state's scales."""
    return f"scale.{state}"


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
            multiple = 8 // DTYPES[self.dtype][1]
            raise DataError(
                f"A hidden size of {self.hidden_size} is not a multiple of {multiple}, "
                f"which shards of {self.dtype} need."
            )

    @property
    def scaled(self) -> bool:
        """Whether rows are stored in 8 bits, each with a scale."""
        return self.dtype == FP8

    @property
    def as_read(self) -> "StateShape":
        """The shape of the rows as they were computed and as they are read: bfloat16 where 8 bits are stored."""
        return replace(self, dtype="bfloat16") if self.scaled else self

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in one state, without its scale."""
        return self.hidden_size * DTYPES[self.dtype][1]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in a shard: all states with their scales, token id and loss mask."""
        scale = SCALE_BYTES if self.scaled else 0
        return (self.row_bytes + scale) * len(self.states) + INDEX_BYTES_PER_TOKEN


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
        # Behind the tensors of 8 bytes, because T scales of 4 would not keep those aligned.
        scales = [(scale_name(name), SCALE_CODE, SCALE_BYTES, (T,)) for name in self.shape.states if self.shape.scaled]
        return [
            *states,
            ("offsets", "I64", 8, (n + 1,)),
            ("sample_ids", "I64", 8, (n,)),
            ("checksums", "I64", 8, (n, S)),
            *scales,
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
    def index_spans(self) -> list[tuple[int, int]]:
        """(offset, bytes) of everything but the states and their scales: the header, and the small tensors."""
        checksums, ids = self.slots["checksums"], self.slots["input_ids"]
        begin, end = self.slots["offsets"].offset, checksums.offset + checksums.nbytes
        return [(0, len(self.header)), (begin, end - begin), (ids.offset, self.size - ids.offset)]

    @property
    def state_offsets(self) -> dict[str, int]:
        return {name: self.slots[name].offset for name in self.shape.states}

    @property
    def scale_offsets(self) -> dict[str, int]:
        """By state; empty where rows have no scale."""
        return {name: self.slots[scale_name(name)].offset for name in self.shape.states if self.shape.scaled}

    def rows(self, state: str, row: int, length: int) -> tuple[int, int]:
        """(offset in the file, bytes) of `length` rows of one state from `row` on."""
        return self.slots[state].offset + row * self.shape.row_bytes, length * self.shape.row_bytes

    def scales(self, state: str, row: int, length: int) -> tuple[int, int]:
        """(offset in the file, bytes) of the scales of these rows; no bytes where rows have none."""
        if not self.shape.scaled:
            return 0, 0
        return self.slots[scale_name(state)].offset + row * SCALE_BYTES, length * SCALE_BYTES
