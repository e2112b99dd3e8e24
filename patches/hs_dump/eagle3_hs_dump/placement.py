"""Where each row goes: reads `work/placement.json` and `work/placement.safetensors`, written by the client before.

Without torch, which the writers' processes do not load.
"""

import json
import os
from array import array
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from . import DumpError

FORMAT_VERSION = 1
FINAL = "final"
SCALED = "fp8_e4m3"
"""Rows of this type have a scale each."""
ITEM_BYTES = {"bfloat16": 2, SCALED: 1}
_CODES = {"I32": "i", "I64": "q"}


@dataclass(frozen=True)
class Shard:
    path: Path
    """The `.partial` file, made by the client before it sends the shard's first sequence."""
    dtype: str
    """What the states are stored as, one of ITEM_BYTES."""
    state_offsets: tuple[int, ...]
    """Byte offset of each state, in the order of `Placement.states`."""
    scale_offsets: tuple[int, ...]
    """Byte offset of each state's scales, in the same order; empty where rows have none."""


@dataclass(frozen=True)
class Placement:
    prefix: str
    """Request ids that are ours start with this."""
    hidden_size: int
    boundaries: tuple[int, ...]
    states: tuple[str, ...]
    """`boundary.<b>` ascending, then `final`."""
    shards: tuple[Shard, ...]
    sample_ids: array
    shard: array
    row: array
    length: array

    @cached_property
    def index(self) -> dict[int, int]:
        """Sample id to position in the arrays."""
        return {sample: position for position, sample in enumerate(self.sample_ids)}

    def find(self, rid: str) -> int | None:
        """Position of a request's sequence; None for a request that is not of this dataset."""
        if not rid.startswith(self.prefix):
            return None
        try:
            return self.index[int(rid[len(self.prefix) :])]
        except (ValueError, KeyError):
            raise DumpError(f"request {rid!r} carries this dataset's nonce but is not in its placement") from None


def read_header(file: int, name: str) -> tuple[dict[str, Any], int]:
    """Header of an open safetensors file, and where its data begin."""
    size = int.from_bytes(os.pread(file, 8, 0), "little")
    text = os.pread(file, size, 8)
    if size == 0 or len(text) != size:
        raise DumpError(f"{name} is not a safetensors file, or is truncated")
    return json.loads(text), 8 + size


def _read_arrays(path: Path) -> dict[str, array]:
    file = os.open(path, os.O_RDONLY)
    try:
        header, start = read_header(file, str(path))
        out = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            values = array(_CODES[entry["dtype"]])
            values.frombytes(os.pread(file, end - begin, start + begin))
            out[name] = values
        return out
    finally:
        os.close(file)


def _shard(folder: Path, entry: dict[str, Any], states: tuple[str, ...]) -> Shard:
    dtype = entry["dtype"]
    if dtype not in ITEM_BYTES:
        raise DumpError(f"dtype {dtype!r} is not one that this plugin writes: {', '.join(ITEM_BYTES)}")
    return Shard(
        path=folder / f"{entry['file']}.partial",
        dtype=dtype,
        state_offsets=tuple(entry["state_offsets"][name] for name in states),
        scale_offsets=tuple(entry["scale_offsets"][name] for name in states) if dtype == SCALED else (),
    )


def read_placement(work: Path) -> Placement:
    """Reads the folder named by SGLANG_HS_DUMP_DIR; raises DumpError where it is not what this version understands."""
    try:
        plan = json.loads((work / "placement.json").read_text(encoding="utf-8"))
        arrays = _read_arrays(work / "placement.safetensors")
    except OSError as error:
        raise DumpError(f"no placement in {work}: {error}") from error
    if plan["format_version"] != FORMAT_VERSION:
        raise DumpError(f"{work} has placement format {plan['format_version']}, this plugin reads {FORMAT_VERSION}")
    states = tuple(plan["states"])
    boundaries = tuple(int(name.removeprefix("boundary.")) for name in states[:-1])
    if states[-1] != FINAL or list(boundaries) != sorted(set(boundaries)):
        raise DumpError(f"states must be boundaries in ascending order and then {FINAL!r}, not {list(states)}")
    shards = tuple(_shard(work.parent, entry, states) for entry in plan["shards"])
    return Placement(
        prefix=f"eagle3-{plan['nonce']}-",
        hidden_size=plan["hidden_size"],
        boundaries=boundaries,
        states=states,
        shards=shards,
        sample_ids=arrays["sample_ids"],
        shard=arrays["shard"],
        row=arrays["row"],
        length=arrays["length"],
    )
