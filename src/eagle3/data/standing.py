"""How far a dataset is that is still being made: what its ledgers say, without a look at the states.

Nothing here imports torch: `eagle3 inspect` must answer at once.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3.data.ledger import BASE_ID, LedgerTail
from eagle3.data.manifest import Manifest


@dataclass(frozen=True)
class Standing:
    """Of shards that are not finished."""

    sequences: int
    """Committed: all of their rows are written."""
    tokens: int


def standing(folder: Path, manifest: Manifest | None) -> Standing:
    """What is committed beside the manifest's shards. Damage shows only to the command that continues."""
    with suppress(OSError):
        length = {c.sample_id: c.length for c in LedgerTail(folder / "work").poll() if c.bad is None}
        finished = _finished_ids(folder, manifest) if manifest is not None else set[int]()
        rest = [n for i, n in length.items() if i < BASE_ID and i not in finished]
        return Standing(len(rest), sum(rest))
    return Standing(0, 0)


def _finished_ids(folder: Path, manifest: Manifest) -> set[int]:
    found: set[int] = set()
    for shard in manifest.shards:
        layout = manifest.layout(shard)
        slot = layout.slots["sample_ids"]
        with suppress(OSError), (folder / shard.file).open("rb") as file:
            if os.fstat(file.fileno()).st_size == layout.size:
                found.update(np.frombuffer(os.pread(file.fileno(), slot.nbytes, slot.offset), np.int64).tolist())
    return found
