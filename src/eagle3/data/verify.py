"""Is a dataset what its manifest says? Every checksum, every sequence, every value."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from isal.isal_zlib import crc32

from eagle3.data.layout import FINAL, ShardLayout, state_names
from eagle3.data.manifest import NAME, Manifest, ShardEntry
from eagle3.data.placement import placement_sha256
from eagle3.data.shards import TORCH, open_shard, read_index
from eagle3.data.skeleton import index_sha256, state_chunks
from eagle3.errors import DataError


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where."""

    text: str
    file: str = NAME
    sequence: int | None = None
    """Sample id."""
    state: str | None = None

    def __str__(self) -> str:
        place = [self.file]
        if self.sequence is not None:
            place.append(f"sequence {self.sequence}")
        if self.state is not None:
            place.append(self.state)
        return f"{', '.join(place)}: {self.text}"


Progress = Callable[[int, int], None]
"""(bytes read, bytes in all)."""


def verify(folder: Path, on_progress: Progress | None = None) -> Iterator[Fault]:
    """Yields what is wrong, in the order of the files, as it is found; nothing when all is well. Reads every byte of
    the finished shards; that others are not finished comes last.
    """
    try:
        manifest = Manifest.load(folder)
        layouts = [manifest.layout(shard) for shard in manifest.shards]
    except DataError as error:
        yield Fault(str(error))
        return
    yield from _manifest_faults(folder, manifest)
    progress = _Counter(sum(layout.size for layout in layouts), on_progress)
    ids, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    where: dict[int, str] = {}
    readable = True
    for shard, layout in zip(manifest.shards, layouts, strict=True):
        try:
            offsets, sample_ids = read_index(folder / shard.file, layout)
        except DataError as error:
            yield Fault(str(error), shard.file)
            readable = False
            progress.add(layout.size)
            continue
        for sample_id in sample_ids.tolist():
            if sample_id in where:
                yield Fault(f"is in {where[sample_id]} too", shard.file, sample_id)
            where[sample_id] = shard.file
        ids.append(sample_ids)
        lengths.append(np.diff(offsets))
        yield from _shard_faults(folder, manifest, shard, layout, offsets, sample_ids, progress)
    all_ids, all_lengths = np.concatenate(ids), np.concatenate(lengths)
    if readable and manifest.complete:
        digest = placement_sha256(all_ids, all_lengths, [s.tokens for s in manifest.shards])
        if digest != manifest.placement.get("sha256"):
            yield Fault("the shards don't hold the sequences, lengths and order that were planned ('placement')")
    for unknown in sorted(set(manifest.quarantined) - {str(i) for i in all_ids.tolist()}):
        if readable:
            yield Fault("is quarantined, but in no shard", sequence=int(unknown))
    if not manifest.complete:  # last: of what is finished, all is known by now
        planned = manifest.placement["sequences"]
        yield Fault(
            f"it is not complete: finished shards hold {manifest.sequences} of {planned} sequences. The same command "
            "continues, and looks at what is in unfinished ones"
        )


class _Counter:
    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self.done, self.total, self.on_progress = 0, total, on_progress

    def add(self, n: int) -> None:
        self.done += n
        if self.on_progress:
            self.on_progress(self.done, self.total)


def _manifest_faults(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    made_of, wanted = manifest.target.get("fingerprint"), _target_wanted(folder)
    if wanted not in (None, made_of):
        yield Fault(f"it is of another target, {made_of}, than the folder is made for by its inputs.json, {wanted}")
    if manifest.states != state_names(manifest.boundaries):
        yield Fault(f"states {manifest.states} are not boundaries {manifest.boundaries} ascending, then {FINAL!r}")
    if manifest.final_norm != "post":
        yield Fault(f"final_norm is {manifest.final_norm!r}; this version knows 'post' only")
    sums = {name: sum(getattr(s, name) for s in manifest.shards) for name in ("sequences", "tokens", "bytes")}
    planned = {**manifest.placement} if manifest.complete else {}
    for name, value in sums.items():
        if getattr(manifest, name) != value:
            yield Fault(f"{name} is {getattr(manifest, name)}, and the shards' sum is {value}")
        if planned.get(name, value) != value:
            yield Fault(f"{planned[name]} {name} were planned, and the shards hold {value}")
    listed = [shard.file for shard in manifest.shards]
    for path in sorted(folder.glob("shard-*")):
        if path.name not in listed and manifest.complete:
            yield Fault("is not in the manifest; remove it", path.name)


def _target_wanted(folder: Path) -> str | None:
    """The fingerprint of the target that a stage's folder is made for; None for a folder of no stage."""
    try:
        return json.loads((folder / "inputs.json").read_text(encoding="utf-8")).get("target")
    except (OSError, ValueError, AttributeError):
        return None


def _shard_faults(
    folder: Path,
    manifest: Manifest,
    shard: ShardEntry,
    layout: ShardLayout,
    offsets: np.ndarray,
    sample_ids: np.ndarray,
    progress: _Counter,
) -> Iterator[Fault]:
    if shard.bytes != layout.size:
        yield Fault(f"the manifest says {shard.bytes} bytes, and its tokens make {layout.size}", shard.file)
    with open_shard(folder / shard.file, layout) as file:
        descriptor = file.fileno()
        if index_sha256(descriptor, layout) != shard.sha256:
            yield Fault("ids, masks, offsets or checksums have changed since they were written (sha256)", shard.file)
        slot = layout.slots["checksums"]
        sums = np.frombuffer(os.pread(descriptor, slot.nbytes, slot.offset), np.int64).reshape(slot.shape)
        progress.add(sum(nbytes for _, nbytes in layout.index_spans))
        for i, sample_id in enumerate(sample_ids.tolist()):
            row, length = int(offsets[i]), int(offsets[i + 1] - offsets[i])
            quarantined = str(sample_id) in manifest.quarantined
            if quarantined != bool((sums[i] == -1).any()):
                yield Fault("is quarantined in the manifest or in the shard, but not in both", shard.file, sample_id)
            for k, state in enumerate(layout.shape.states):
                if not quarantined:
                    text = _rows_fault(descriptor, layout, state, row, length, int(sums[i, k]))
                    if text:
                        yield Fault(text, shard.file, sample_id, state)
                progress.add(layout.rows(state, row, length)[1] + layout.scales(state, row, length)[1])


def _rows_fault(descriptor: int, layout: ShardLayout, state: str, row: int, length: int, expected: int) -> str | None:
    crc, wrong = 0, None
    for stored, chunk in state_chunks(descriptor, layout, state, row, length):
        crc = crc32(chunk, crc)
        values = torch.frombuffer(bytearray(chunk), dtype=TORCH[stored])
        if not _finite(values):
            wrong = "has a value that is not finite (NaN or infinity)"
        elif stored != layout.slots[state].dtype and bool((values <= 0).any()):
            wrong = "has a scale that is not positive"
    return wrong if crc == expected else f"{length} rows don't have their checksum: {crc} instead of {expected}"


def _finite(values: torch.Tensor) -> bool:
    if values.dtype == torch.float8_e4m3fn:  # it has no infinity, and NaN where all bits but the sign are set
        return not bool((values.view(torch.uint8) & 0x7F == 0x7F).any())
    return bool(torch.isfinite(values).all())
