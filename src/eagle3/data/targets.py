"""The target's own choice at every token, computed once for all epochs and trainings instead of in every step.

It needs the whole output head (V rows), where a training step needs the draft vocabulary's (D of them) only. What was
computed is kept beside the dataset, each sequence with a checksum, so another training, and one that goes on, finds it
there; what is not as it was written is computed again.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.dataset import SequenceDataset
from eagle3.data.layout import FINAL
from eagle3.data.shards import HiddenStates
from eagle3.drafter.ttt import target_argmax
from eagle3.errors import DataError, TrainingError
from eagle3.files.disk import disk_error
from eagle3.metrics import Reporter

REPORT_S = 0.5
KEPT = "target_top-"
FORMAT = "2"


@torch.no_grad()
def fill_target_top(
    datasets: Sequence[SequenceDataset],
    target_head: Tensor,
    device: torch.device | str,
    reporter: Reporter,
    begin: float = 0.0,
) -> None:
    """Sets `target_top` of each: the arg-max of `final @ target_head.T` where a step's target is, 0 elsewhere.

    Sequence by sequence, so that the result does not depend on how sequences are packed: a resumed run sees the same.
    In fp32, where products of bfloat16 are exact and near-ties are not rounded together.

    Args:
        datasets: parts of one dataset of hidden states.
        target_head: `[V, Ht]`, on `device`.
        begin: from 0, and below 1, where in each dataset to begin: ranks that begin apart find what the others did.
    """
    head = target_head.float() if target_head.device.type == "cpu" else target_head
    states = datasets[0].states
    done, total, reported = 0, sum(int(dataset.lengths.sum()) for dataset in datasets), time.monotonic()
    with _Kept(states, reporter) as kept:
        for dataset in datasets:
            top = torch.zeros(int(dataset.lengths.sum()), dtype=torch.int32)
            first = int(begin * len(dataset.rows))
            for i in (*range(first, len(dataset.rows)), *range(first)):
                row = int(dataset.rows[i])
                if (chosen := kept.read(row)) is None:
                    rows = target_rows(states.read(row, ["loss_mask"])["loss_mask"].numpy())
                    final = states.read(row, [FINAL])[FINAL][torch.from_numpy(rows)].to(device)
                    chosen = np.zeros(int(dataset.lengths[i]), np.int32)
                    chosen[rows] = target_argmax(final, head, torch.float32).cpu().numpy()
                    kept.write(row, chosen)
                top[dataset.offsets[i] : dataset.offsets[i + 1]] = torch.from_numpy(chosen)
                done += int(dataset.lengths[i])
                if time.monotonic() - reported > REPORT_S:
                    reporter.progress(done, total, unit="tokens", doing="the target's choices")
                    reported = time.monotonic()
            dataset.target_top = top


class _Kept:
    """A file with a record for each sequence, in order: crc32, then `[S]` int32 choices. What is not written is zeros.

    It is named by all that the choices depend on: the checksums in the shards are those of the states. Several
    trainings may fill it at a time, with the same numbers. It is read and written, not mapped, so that a full disk is
    an error and no signal; a folder that can't be written keeps nothing.
    """

    def __init__(self, states: HiddenStates, reporter: Reporter | None) -> None:
        """Without `reporter` it is read only."""
        self.path = states.folder / f"{KEPT}{_name_of(states)}.i32"
        self.lengths = states.lengths.numpy()
        self.begins = 4 * (np.cumsum(self.lengths) - self.lengths + np.arange(len(self.lengths)))
        self.reporter = reporter
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT if reporter else os.O_RDONLY, 0o644)

    def __enter__(self) -> "_Kept":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def record(self, row: int) -> bytes:
        """As it is in the file, which may end before."""
        if self._file is None:
            return b""
        return os.pread(self._file, 4 + 4 * int(self.lengths[row]), int(self.begins[row]))

    def read(self, row: int) -> np.ndarray | None:
        """`[S]` int32 of a sequence, or None where they are not known."""
        record = self.record(row)
        if len(record) != 4 + 4 * int(self.lengths[row]) or record[:4] != _sum(row, record[4:]):
            return None
        return np.frombuffer(record, np.int32, offset=4).copy()

    def write(self, row: int, chosen: np.ndarray) -> None:
        if self._file is None:
            return
        record = _sum(row, chosen.tobytes()) + chosen.tobytes()
        try:
            if os.pwrite(self._file, record, int(self.begins[row])) == len(record):
                return  # else it was the disk's last room, and the next one fails
        except OSError as error:
            if self.reporter is not None:
                told = disk_error(error, self.path)
                self.reporter.note(f"the target's choices are not kept for other trainings. {told}")
            os.close(self._file)
            self._file = None


def _name_of(states: HiddenStates) -> str:
    manifest = states.manifest
    facts = [FORMAT, manifest.target.get("fingerprint", ""), *(shard.sha256 for shard in manifest.shards)]
    facts += [str(sample) for sample in states.sample_ids.tolist()]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _sum(row: int, choices: bytes) -> bytes:
    """Never zeros only, which is what a record that is not written has. Depends on the sequence's place too."""
    return (zlib.crc32(choices, row) or 1).to_bytes(4, "little")


def damaged_choices(folder: Path) -> str | None:
    """What is wrong with the choices that are kept beside a dataset; None where nothing is, or none are kept.

    None too for a dataset that can't be read: `verify` names why.
    """
    try:
        states = HiddenStates(folder)
    except DataError:
        return None
    with _Kept(states, None) as kept:
        wrong = [row for row in range(len(states)) if kept.record(row).strip(b"\0") and kept.read(row) is None]
    if not wrong:
        return None
    return (
        f"{kept.path.name}: the target's choices of {len(wrong)} sequences don't have their checksum; the next "
        "training computes them again"
    )


def forget_choices(folder: Path) -> None:
    """Removes what is kept beside a dataset; the next training computes it again."""
    for path in folder.glob(f"{KEPT}*"):
        path.unlink()


def target_rows(loss_mask: np.ndarray) -> np.ndarray:
    """Positions whose distribution some step is compared with: before each response token from the third token on."""
    return np.flatnonzero(loss_mask[2:]) + 1


def require_drafted(train: SequenceDataset, held_out: SequenceDataset, draft_ids: Tensor, reporter: Reporter) -> None:
    """Looks whether anything can be learnt and measured, of datasets whose choices are filled in.

    Args:
        draft_ids: `[D]` ascending.

    Raises:
        TrainingError: no choice of the target that is trained on is in the draft vocabulary: the loss would be 0.
    """
    found, scored = _drafted(train, draft_ids)
    told = f"none of the target's own choices at the {scored:,} positions that are scored is in the draft vocabulary"
    remedy = (
        "The answers are hardly this target's own (prepare.regenerate=true has it write them), or "
        "drafter.draft_vocab_size is too small"
    )
    if not found:
        raise TrainingError(f"There is nothing to learn: {told} of {len(draft_ids):,} tokens. {remedy}.")
    found, scored = _drafted(held_out, draft_ids)
    if not found:
        reporter.note(f"the held-out figures mean nothing: {told.replace('scored', 'held out and scored')}")


def _drafted(dataset: SequenceDataset, draft_ids: Tensor) -> tuple[int, int]:
    """(targets in the draft vocabulary, targets)."""
    assert dataset.target_top is not None
    _, mask = dataset.ids_and_mask()
    is_target = torch.zeros(len(mask), dtype=torch.bool)
    is_target[:-1] = torch.from_numpy(mask[1:] != 0)
    is_target[dataset.offsets[:-1]] = False  # no sequence's first token
    is_target[dataset.offsets[1:] - 1] = False  # or last one
    chosen = dataset.target_top[is_target]
    place = torch.searchsorted(draft_ids, chosen).clamp(max=len(draft_ids) - 1)
    return int((draft_ids[place] == chosen).sum()), len(chosen)
