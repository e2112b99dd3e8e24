"""The target's own choice at every token, computed once for all epochs instead of in every step.

It needs the whole output head (V rows), where a training step needs the draft vocabulary's (D of them) only.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from eagle3.data.dataset import SequenceDataset
from eagle3.data.layout import FINAL
from eagle3.drafter.ttt import target_argmax
from eagle3.metrics import Reporter

REPORT_S = 0.5


@torch.no_grad()
def fill_target_top(
    datasets: Sequence[SequenceDataset], target_head: Tensor, device: torch.device | str, reporter: Reporter
) -> None:
    """Sets `target_top` of each: the arg-max of `final @ target_head.T` where a step's target is, 0 elsewhere.

    Sequence by sequence, so that the result does not depend on how sequences are packed: a resumed run sees the same.
    In fp32, where products of bfloat16 are exact and near-ties are not rounded together.

    Args:
        target_head: `[V, Ht]`, on `device`.
    """
    head = target_head.float() if target_head.device.type == "cpu" else target_head
    done, total, reported = 0, sum(int(dataset.lengths.sum()) for dataset in datasets), time.monotonic()
    for dataset in datasets:
        top = torch.zeros(int(dataset.lengths.sum()), dtype=torch.int32)
        for i in range(len(dataset)):
            sequence = dataset.states.read(int(dataset.rows[i]), ["loss_mask", FINAL])
            rows = target_rows(sequence["loss_mask"].numpy())
            if len(rows):
                final = sequence[FINAL][torch.from_numpy(rows)].to(device)
                top[dataset.offsets[i] + rows] = target_argmax(final, head, torch.float32).to("cpu", torch.int32)
            done += int(dataset.lengths[i])
            if time.monotonic() - reported > REPORT_S:
                reporter.progress(done, total, unit="tokens", doing="the target's choices")
                reported = time.monotonic()
        dataset.target_top = top


def target_rows(loss_mask: np.ndarray) -> np.ndarray:
    """Positions whose distribution some step is compared with: before each response token from the third token on."""
    return np.flatnonzero(loss_mask[2:]) + 1
