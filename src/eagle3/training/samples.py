"""What the drafter drafts at a few held-out places, at each validation, beside what the target says there.

Drafted as training-time test drafts: step k is given the text's own tokens up to x_{t+1+k}. Up to the first draft that
is not the target's this is what serving does, where the text is the target's; later drafts would be thrown away.
"""

from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from eagle3.data.dataset import SequenceDataset
from eagle3.data.token_text import TokenText
from eagle3.drafter.batch import Batch, valid_positions
from eagle3.training.logger import ReporterLogger
from eagle3.training.module import DrafterModule

SEQUENCES = 4
PLACES = 2
"""Of each sequence."""
CONTEXT = 24
"""Tokens shown before the drafted ones."""
NAME = "val/samples"


class SampleDrafts(Callback):
    """Reports a table after each validation: the same places every time, so that what is learnt can be seen."""

    def __init__(
        self, logger: ReporterLogger, held_out: SequenceDataset, steps: int, tokens: int, text: TokenText | None
    ) -> None:
        """
        Args:
            tokens: of all chosen sequences together, at most, but for the first.
            text: without it, ids are shown.
        """
        self.logger, self.held_out, self.steps, self.text = logger, held_out, steps, text
        self.chosen = choose(held_out, steps, tokens)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.sanity_checking or not self.chosen:
            return
        assert isinstance(pl_module, DrafterModule)
        batch = self.held_out.batch(self.chosen)
        # On every rank alike: where the weights are spread over ranks, all must take part.
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            choices = pl_module.first_choices(batch.to(pl_module.device))
        if trainer.is_global_zero:
            table = sample_drafts(batch, choices.cpu(), self.steps, self.text)
            self.logger.reporter.log({NAME: table}, trainer.global_step)


def choose(held_out: SequenceDataset, steps: int, tokens: int) -> list[int]:
    """Positions in the split: spread over the sequences that are scored anywhere, as many as `tokens` has room for."""
    scored = np.flatnonzero(held_out.scored(steps)[:, 0])
    spread = scored[np.unique(np.linspace(0, len(scored) - 1, SEQUENCES).round().astype(int))] if len(scored) else []
    chosen: list[int] = []
    for i in spread:
        if not chosen or int(held_out.lengths[[*chosen, int(i)]].sum()) <= tokens:
            chosen.append(int(i))
    return chosen


def sample_drafts(batch: Batch, choices: Tensor, steps: int, text: TokenText | None) -> list[dict[str, Any]]:
    """Rows of `sample` (its id), `position` (of the first drafted token in its conversation), `context`, `drafted` and
    `target` (each token in brackets), `drafts`, `accepted`.

    Args:
        batch: on the CPU, with `target_top`.
        choices: `TttResult.choices`, on the CPU.
    """
    assert batch.target_top is not None
    valid = valid_positions(batch.loss_mask, batch.document, steps)
    drafted = torch.zeros(valid.shape, dtype=torch.int64)
    drafted[valid] = choices  # row by row, as choices are
    rows = []
    for n, sample in enumerate(batch.sample_ids.tolist()):
        begin = int((batch.document < n).sum())
        for t in _places(valid, batch.document == n):
            drafts = int(valid[:, t].long().cumprod(0).sum())
            ours, theirs = drafted[:drafts, t].tolist(), batch.target_top[t + 1 : t + 1 + drafts].tolist()
            start = max(begin, t + 2 - CONTEXT)
            context = batch.input_ids[start : t + 2].tolist()
            shown = _line(text.text(context)) if text else " ".join(map(str, context))
            agree = [a == b for a, b in zip(ours, theirs, strict=True)]
            rows.append(
                {
                    "sample": sample,
                    "position": t + 2 - begin,
                    "context": f"...{shown}" if start > begin else shown,
                    "drafted": _bracketed(text, context, ours),
                    "target": _bracketed(text, context, theirs),
                    "drafts": drafts,
                    "accepted": [*agree, False].index(False),
                }
            )
    return rows


def _places(valid: Tensor, here: Tensor) -> list[int]:
    """Positions of one document, evenly apart, where all steps are scored; where none is so, the first step is."""
    found = (valid.all(0) & here).nonzero()[:, 0]
    found = found if len(found) else (valid[0] & here).nonzero()[:, 0]
    return sorted({int(found[len(found) * (j + 1) // (PLACES + 1)]) for j in range(PLACES)})


def _bracketed(text: TokenText | None, context: list[int], ids: Sequence[int]) -> str:
    pieces = [str(i) for i in ids] if text is None else text.pieces(context, ids)
    return "".join(f"[{_line(piece)}]" for piece in pieces)


def _line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
