"""A shard while it is written: a sparse file of everything but the states, then checksums, then its final name."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from isal.isal_zlib import crc32

from eagle3.data.layout import SCALE_CODE, ShardLayout
from eagle3.data.manifest import ShardEntry, sync_folder

PARTIAL = ".partial"
CHUNK = 4 << 20


@dataclass(frozen=True)
class ShardIndex:
    """What is known of a shard before its states are."""

    offsets: np.ndarray
    """[n+1] int64; sequence i has the rows offsets[i] to offsets[i+1]."""
    sample_ids: np.ndarray
    """[n] int64."""
    input_ids: np.ndarray
    """[T] int32."""
    loss_mask: np.ndarray
    """[T] uint8."""

    def blobs(self, layout: ShardLayout) -> list[tuple[int, bytes]]:
        """(offset in the file, bytes) of all that is known in advance, the header included."""
        arrays = {
            "offsets": self.offsets.astype("<i8"),
            "sample_ids": self.sample_ids.astype("<i8"),
            "input_ids": self.input_ids.astype("<i4"),
            "loss_mask": self.loss_mask.astype("u1"),
        }
        return [(0, layout.header), *((layout.slots[name].offset, a.tobytes()) for name, a in arrays.items())]


def create_skeleton(path: Path, layout: ShardLayout, index: ShardIndex) -> None:
    """Writes the shard without its states; the file has its full size, and takes no space where nothing is written.

    It appears whole or not at all, so whoever finds it may write into it.
    """
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.truncate(layout.size)
        for offset, blob in index.blobs(layout):
            file.seek(offset)
            file.write(blob)
    beside.rename(path)


def skeleton_matches(path: Path, layout: ShardLayout, index: ShardIndex) -> bool:
    """Whether the file is this very shard, finished or not (its states and checksums are not looked at)."""
    try:
        if path.stat().st_size != layout.size:
            return False
        with path.open("rb") as file:
            return all(os.pread(file.fileno(), len(b), offset) == b for offset, b in index.blobs(layout))
    except FileNotFoundError:
        return False


def read_chunks(descriptor: int, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes of (offset, bytes) spans one after the other, a few MiB at a time."""
    for offset, nbytes in spans:
        for at in range(offset, offset + nbytes, CHUNK):
            yield os.pread(descriptor, min(CHUNK, offset + nbytes - at), at)


def state_chunks(
    descriptor: int, layout: ShardLayout, state: str, row: int, length: int
) -> Iterator[tuple[str, bytes]]:
    """What a sequence's checksum in one state is over: its rows, then their scales. Each with safetensors' type."""
    rows, scales = layout.rows(state, row, length), layout.scales(state, row, length)
    yield from ((layout.slots[state].dtype, chunk) for chunk in read_chunks(descriptor, [rows]))
    yield from ((SCALE_CODE, chunk) for chunk in read_chunks(descriptor, [scales]))


def row_checksums(descriptor: int, layout: ShardLayout, row: int, length: int) -> list[int]:
    """crc32 of a sequence in each state, in order of the states."""
    sums = []
    for state in layout.shape.states:
        crc = 0
        for _, chunk in state_chunks(descriptor, layout, state, row, length):
            crc = crc32(chunk, crc)
        sums.append(crc)
    return sums


def checksum_table(descriptor: int, layout: ShardLayout) -> np.ndarray:
    """[n, ...] int64: the checksums that the shard itself holds; zeros in one that is not finished."""
    slot = layout.slots["checksums"]
    return np.frombuffer(os.pread(descriptor, slot.nbytes, slot.offset), np.int64).reshape(slot.shape)


def index_sha256(descriptor: int, layout: ShardLayout) -> str:
    """sha256 of everything but the states and their scales: what a manifest lists of a shard."""
    digest = hashlib.sha256()
    for chunk in read_chunks(descriptor, layout.index_spans):
        digest.update(chunk)
    return digest.hexdigest()


def finalise(partial: Path, layout: ShardLayout, checksums: np.ndarray) -> ShardEntry:
    """Adds the checksums [n, K+1] int64, makes the shard last, and gives it its final name.

    Until the returned entry is in the manifest the shard does not exist.
    """
    final = partial.with_name(partial.name.removesuffix(PARTIAL))
    descriptor = os.open(partial, os.O_RDWR)
    try:
        os.pwrite(descriptor, checksums.astype("<i8").tobytes(), layout.slots["checksums"].offset)
        os.fdatasync(descriptor)
        sha256 = index_sha256(descriptor, layout)
    finally:
        os.close(descriptor)
    partial.rename(final)
    sync_folder(final.parent)
    return ShardEntry(final.name, layout.sequences, layout.tokens, layout.size, sha256)
