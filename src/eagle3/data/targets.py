"""The target's own choice at every token, computed once for all epochs and trainings instead of in every step.

It needs the whole output head (V rows), where a training step needs the draft vocabulary's (D of them) only. What was
computed is kept beside the dataset, so another training, and one that goes on, finds it there.
"""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.dataset import SequenceDataset
from eagle3.data.layout import FINAL
from eagle3.data.shards import HiddenStates
from eagle3.drafter.ttt import target_argmax
from eagle3.metrics import Reporter

REPORT_S = 0.5
UNKNOWN = 0
KEPT = "target_top-"


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
    kept = _kept(states)
    begins = np.concatenate([[0], np.cumsum(states.lengths.numpy())])
    done, total, reported = 0, sum(int(dataset.lengths.sum()) for dataset in datasets), time.monotonic()
    for dataset in datasets:
        top = torch.zeros(int(dataset.lengths.sum()), dtype=torch.int32)
        first = int(begin * len(dataset.rows))
        for i in (*range(first, len(dataset.rows)), *range(first)):
            row = dataset.rows[i]
            mask = states.read(int(row), ["loss_mask"])["loss_mask"].numpy()
            rows, mine = target_rows(mask), kept[begins[row] : begins[row + 1]]
            if (mine[rows] == UNKNOWN).any():
                final = states.read(int(row), [FINAL])[FINAL][torch.from_numpy(rows)].to(device)
                mine[rows] = target_argmax(final, head, torch.float32).to("cpu", torch.int32).numpy() + 1
            top[dataset.offsets[i] + rows] = torch.from_numpy(mine[rows] - 1)
            done += int(dataset.lengths[i])
            if time.monotonic() - reported > REPORT_S:
                reporter.progress(done, total, unit="tokens", doing="the target's choices")
                reported = time.monotonic()
        dataset.target_top = top


def _kept(states: HiddenStates) -> np.ndarray:
    """[T] int32 over all sequences in order: the choice + 1, or 0 where it is not known. What is set in it is kept.

    Its file is named by all that the choices depend on: the checksums in the shards are those of the states. Several
    trainings may fill it at a time, with the same numbers. A folder that can't be written keeps nothing.
    """
    manifest = states.manifest
    facts = [manifest.target.get("fingerprint", ""), *(shard.sha256 for shard in manifest.shards)]
    facts += [str(sample) for sample in states.sample_ids.tolist()]
    path = states.folder / f"{KEPT}{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:16]}.i32"
    size = int(states.lengths.sum())
    try:
        with path.open("a+b") as file:
            file.truncate(4 * size)
        return np.memmap(path, np.int32, "r+", shape=(size,))
    except OSError:
        return np.zeros(size, np.int32)


def forget_choices(folder: Path) -> None:
    """Removes what is kept beside a dataset; the next training computes it again."""
    for path in folder.glob(f"{KEPT}*"):
        path.unlink()


def target_rows(loss_mask: np.ndarray) -> np.ndarray:
    """Positions whose distribution some step is compared with: before each response token from the third token on."""
    return np.flatnonzero(loss_mask[2:]) + 1
