"""Reading a dataset of hidden states: an index in memory, the states straight from the page cache."""

import mmap
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3.data.fp8 import dequantise
from eagle3.data.layout import DTYPES, INDEX, ShardLayout, scale_name
from eagle3.data.manifest import Manifest, ShardEntry
from eagle3.data.skeleton import checksum_table, row_checksums
from eagle3.errors import DataError

__all__ = ["HiddenStates", "Manifest", "ShardEntry"]

TORCH = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
VIEWED = ("input_ids", "loss_mask")
MAX_MAPS = 256
"""Shards mapped at a time; each holds a file descriptor, of which a process commonly has 1,024."""
REMEDY = "Check with `eagle3 verify`, and run the extraction again: it redoes what is missing."


class HiddenStates:
    """A dataset folder, sequence by sequence.

    Usable from several threads, after a fork, and after pickling to a spawned process. Sequences are in the order of
    placement; quarantined ones are left out.
    """

    def __init__(self, folder: Path | str, allow_incomplete: bool = False) -> None:
        """Reads the manifest and each shard's index.

        Raises DataError when the extraction is not complete (unless allowed: then the finished shards are there), or a
        shard is missing, truncated, or not what the manifest says.
        """
        self.folder = Path(folder)
        self.manifest = Manifest.load(self.folder)
        if not (self.manifest.complete or allow_incomplete):
            done, planned = self.manifest.sequences, self.manifest.placement.get("sequences")
            raise DataError(
                f"{self.folder} is not complete: finished shards hold {done} of {planned} sequences. "
                "Run the command that makes it again: it continues."
            )
        self.layouts = [self.manifest.layout(shard) for shard in self.manifest.shards]
        ids, shards, rows, lengths = [], [], [], []
        for number, (shard, layout) in enumerate(zip(self.manifest.shards, self.layouts, strict=True)):
            offsets, sample_ids = read_index(self.folder / shard.file, layout)
            ids.append(sample_ids)
            rows.append(offsets[:-1])
            lengths.append(np.diff(offsets))
            shards.append(np.full(len(sample_ids), number))
        empty = np.empty(0, np.int64)
        all_ids = np.concatenate([empty, *ids])
        quarantined = np.array([int(i) for i in self.manifest.quarantined], np.int64)
        keep = ~np.isin(all_ids, quarantined)
        self._shards = np.concatenate([empty, *shards])[keep]
        self._rows = np.concatenate([empty, *rows])[keep]
        self.sample_ids: Tensor = torch.from_numpy(all_ids[keep])
        """[n] int64: which conversation each sequence is."""
        self.lengths: Tensor = torch.from_numpy(np.concatenate([empty, *lengths])[keep])
        """[n] int64, in tokens."""
        self._lengths = self.lengths.numpy()
        self._sums: tuple[int, np.ndarray, np.ndarray] | None = None
        """Number, offsets and checksums of the shard that `damaged` looked at last."""
        self._open = lru_cache(maxsize=MAX_MAPS)(self._map)

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open = lru_cache(maxsize=MAX_MAPS)(self._map)

    @property
    def dtype(self) -> torch.dtype:
        """Of the states as they are read."""
        return TORCH[DTYPES[self.manifest.shape.as_read.dtype][0]]

    def read(self, i: int, names: list[str]) -> dict[str, Tensor]:
        """Sequence i: `input_ids [S] int32`, `loss_mask [S] uint8`, states `[S, H]` in `dtype`.

        Views: nothing is copied or read before it is touched, and states that are not named are never touched. They
        stay valid as long as they live; writing to them changes a private copy. States stored in 8 bits are converted
        into new memory instead.
        """
        found = self._views(i, names)
        if self.manifest.shape.scaled:
            for name in set(names) & set(self.manifest.states):
                rows = torch.empty(found[name].shape, dtype=self.dtype)
                self._copy(i, name, found[name], rows)
                found[name] = rows
        return found

    def copy(self, i: int, into: dict[str, Tensor]) -> None:
        """Copies what `read` gives of sequence i into tensors of the same shapes; faster where states are converted."""
        for name, view in self._views(i, list(into)).items():
            self._copy(i, name, view, into[name])

    def _copy(self, i: int, name: str, view: Tensor, into: Tensor) -> None:
        if self.manifest.shape.scaled and name in self.manifest.states:
            dequantise(view, self._views(i, [scale_name(name)])[scale_name(name)], into)
        else:
            into.copy_(view)

    def whole(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(`input_ids` or `loss_mask` of all shards one after the other `[T]`, where in it each sequence begins `[n]`).

        One read a shard, however many sequences; quarantined ones are among them.
        """
        starts = np.cumsum([0, *(layout.tokens for layout in self.layouts)])
        array = np.empty(starts[-1], np.int32 if name == "input_ids" else np.uint8)
        for shard, layout, start in zip(self.manifest.shards, self.layouts, starts.tolist(), strict=False):
            with open_shard(self.folder / shard.file, layout) as file:
                os.preadv(file.fileno(), [array[start : start + layout.tokens].data], layout.slots[name].offset)
        return array, starts[self._shards] + self._rows

    def damaged(self, i: int) -> bool:
        """Whether the states of sequence i differ from their checksums. Reads them."""
        number, row = int(self._shards[i]), int(self._rows[i])
        layout, path = self.layouts[number], self.folder / self.manifest.shards[number].file
        if self._sums is None or self._sums[0] != number:
            self._sums = (number, *_checksums(path, layout))
        _, offsets, table = self._sums
        with open_shard(path, layout) as file:
            known = table[int(np.searchsorted(offsets, row))]
            return row_checksums(file.fileno(), layout, row, int(self._lengths[i])) != known.tolist()

    def _views(self, i: int, names: list[str]) -> dict[str, Tensor]:
        tensors = self._open(int(self._shards[i]))
        row, length = int(self._rows[i]), int(self._lengths[i])
        try:
            return {name: tensors[name][row : row + length] for name in names}
        except KeyError as error:
            raise DataError(
                f"{self.folder} has no state {error}; it has {', '.join(self.manifest.states)}. "
                "Choose layers.boundaries among them, or extract with a layers.capture that has it."
            ) from None

    def _map(self, number: int) -> dict[str, Tensor]:
        path, layout = self.folder / self.manifest.shards[number].file, self.layouts[number]
        with open_shard(path, layout) as file:
            # Private and writable, though nobody writes: torch warns of every view on read-only memory.
            view = mmap.mmap(file.fileno(), layout.size, access=mmap.ACCESS_COPY)
        tensors = {}
        for name, slot in layout.slots.items():
            if name in VIEWED or name not in INDEX:
                dtype = TORCH[slot.dtype]
                flat = torch.frombuffer(view, dtype=dtype, count=slot.nbytes // dtype.itemsize, offset=slot.offset)
                tensors[name] = flat.view(slot.shape)
        return tensors


def open_shard(path: Path, layout: ShardLayout) -> Any:
    """The shard opened for reading, after a look at its size; a map of a truncated file would crash the process."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path} is in the manifest, but is not there. {REMEDY}") from None
    except OSError as error:
        raise DataError(f"{path} can't be opened: {error.strerror}.") from None
    size = os.fstat(file.fileno()).st_size
    if size != layout.size:
        file.close()
        raise DataError(f"{path} has {size:,} bytes where the manifest says {layout.size:,}. {REMEDY}")
    return file


def _checksums(path: Path, layout: ShardLayout) -> tuple[np.ndarray, np.ndarray]:
    """(offsets [n+1], checksums [n, K+1]) of a shard."""
    offsets, _ = read_index(path, layout)
    with open_shard(path, layout) as file:
        return offsets, checksum_table(file.fileno(), layout)


def read_index(path: Path, layout: ShardLayout) -> tuple[np.ndarray, np.ndarray]:
    """(offsets [n+1], sample_ids [n]) of a shard. Raises DataError when the file is not the one of the manifest."""
    with open_shard(path, layout) as file:
        if os.pread(file.fileno(), len(layout.header), 0) != layout.header:
            raise DataError(f"{path} has another header than the manifest asks for. {REMEDY}")
        start, n = layout.slots["offsets"].offset, layout.sequences
        both = np.frombuffer(os.pread(file.fileno(), 8 * (2 * n + 1), start), np.int64)
    offsets, sample_ids = both[: n + 1], both[n + 1 :]
    if offsets[0] != 0 or offsets[-1] != layout.tokens or bool((np.diff(offsets) <= 0).any()):
        raise DataError(f"{path}: offsets don't rise from 0 to {layout.tokens} tokens. {REMEDY}")
    return offsets, sample_ids
