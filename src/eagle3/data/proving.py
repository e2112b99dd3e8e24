"""The proof, conducted: a few prompts before the rest, alone, together, and decoded; random sequences at the end.

Proof rows go to a shard of their own, work/proof.safetensors, under sample ids that no prompt has. So whatever a proof
finds, nothing of it is in the dataset, and the folder work/ goes when the dataset is complete. They are what the server
computed, in bfloat16, also where the dataset stores 8 bits; what that loses is measured on them.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eagle3.data.fp8 import dequantise
from eagle3.data.layout import ShardLayout
from eagle3.data.ledger import BASE_ID
from eagle3.data.placement import Placement, Prompts, place
from eagle3.data.proof import (
    Findings,
    logprob_agreement,
    require_decoding,
    require_logprobs,
    require_rows,
    share_of_rows_off,
)
from eagle3.data.quantisation import QuantisationError
from eagle3.data.shards import TORCH
from eagle3.data.skeleton import PARTIAL, create_skeleton
from eagle3.errors import ProofError

FILE = "work/proof.safetensors"
COUNT = 4
"""Sequences a round."""
AT_LEAST, USUAL, AT_MOST = 8, 4096, 32768
"""Tokens: what a proof sequence should have, what a random one has at most, and the longest one."""
DECODED = 8
"""Tokens by which a prompt is continued, in place of its last ones. The first of them comes out of prefill."""

Dump = Callable[[list[int]], Awaitable[list[Tensor | None]]]
"""Sends these sequences of the proof's placement together, and waits for their rows. Gives the server's
log-probabilities [S-1] of each; None where rows are not finite."""

Continue = Callable[[list[int], int], Awaitable[tuple[Tensor, Tensor]]]
"""Has the server continue a prompt by so many tokens, and prefill it with them. Gives the log-probabilities of the
continuation, as they were decoded and as they were prefilled."""


def choose(lengths: np.ndarray, chance: random.Random) -> tuple[list[int], list[int]]:
    """Sequences for the start (the longest, which chunked prefill may split; random ones) and for the end (random)."""
    usable = np.nonzero(lengths >= max(2, min(AT_LEAST, int(lengths.max()))))[0].tolist()
    if not usable:
        raise ProofError(
            "No prompt has two tokens that SGLang gives log-probabilities of, so nothing can be proven of the hidden "
            "states. Check the dataset."
        )
    usual = [i for i in usable if lengths[i] <= USUAL] or usable
    longest = max([i for i in usable if lengths[i] <= AT_MOST] or usual, key=lambda i: lengths[i])
    others = [i for i in usual if i != longest]
    start = [longest, *chance.sample(others, min(COUNT - 1, len(others)))]
    return start, chance.sample(usual, min(COUNT, len(usual)))


def _provable(dataset: Placement, vocab_size: int) -> np.ndarray:
    """[m] lengths, 0 where a prompt has the vocabulary's last token: SGLang reports another one's log-probability."""
    largest = np.array([dataset.input_ids(i).max() for i in range(len(dataset))])
    return np.where(largest < vocab_size - 1, dataset.length, 0)


def _place_copies(dataset: Placement, sequences: list[int], file: str, first_id: int) -> Placement:
    ids = [dataset.input_ids(i) for i in sequences]
    lengths = np.array([len(x) for x in ids])
    tokens = np.concatenate(ids)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    copies = Prompts(tokens, np.zeros(len(tokens), np.uint8), offsets, first_id + np.arange(len(ids)))
    shape = dataset.shards[0].layout.shape.as_read
    one = place(copies, shape, shard_gib=float(1 << 20), context_length=int(lengths.max()))
    return replace(one, shards=[replace(one.shards[0], file=file)])


def read_rows(path: Path, layout: ShardLayout, state: str, row: int, length: int) -> Tensor:
    """[length, H]: a copy of the rows of one state, in bfloat16 where they are stored in 8 bits."""
    offset, nbytes = layout.rows(state, row, length)
    scales_offset, scales_nbytes = layout.scales(state, row, length)
    with path.open("rb") as file:
        data = bytearray(os.pread(file.fileno(), nbytes, offset))
        scales = bytearray(os.pread(file.fileno(), scales_nbytes, scales_offset))
    rows = torch.frombuffer(data, dtype=TORCH[layout.slots[state].dtype]).view(length, -1)
    if not scales:
        return rows
    out = torch.empty(rows.shape, dtype=torch.bfloat16)
    dequantise(rows, torch.frombuffer(scales, dtype=torch.float32), out)
    return out


class Proving:
    """Places the proof's rows, asks for them, and compares them."""

    def __init__(
        self, folder: Path, dataset: Placement, head: Tensor, seed: str, file: str = FILE, first_id: int = BASE_ID
    ) -> None:
        """`head [V, H]` is the target's output head. The server takes a sequence of the proof once only."""
        self.folder = folder
        self.dataset = dataset
        self.head = head
        self.start_set, self.end_set = choose(_provable(dataset, len(head)), random.Random(seed))
        sequences = [*self.start_set, *self.start_set, *self.end_set]
        self.placement = _place_copies(dataset, sequences, file, first_id)
        scaled = dataset.shards[0].layout.shape.scaled
        self.quantisation = QuantisationError(head) if scaled else None
        """Of rows of the proof as far as they were taken; None where the dataset stores what was computed."""

    def create(self) -> None:
        """Makes the proof's shard anew."""
        plan = self.placement.shards[0]
        create_skeleton(self.folder / (plan.file + PARTIAL), plan.layout, self.placement.index(plan))

    async def start(self, dump: Dump, continue_: Continue) -> Findings:
        """Each prompt alone, then all at once: both right, the same, and fit to be stored; and as if it were decoded.

        Raises ProofError.
        """
        n = len(self.start_set)
        alone = [(await dump([k]))[0] for k in range(n)]
        together = await dump(list(range(n, 2 * n)))
        findings = Findings()
        for k, i in enumerate(self.start_set):
            if alone[k] is None and together[k] is None:  # not finite: quarantined when its turn comes in the dataset
                continue
            for copy, logprobs in ((k, alone[k]), (n + k, together[k])):
                await asyncio.to_thread(self._check_logprobs, copy, self._name(i), logprobs, findings)
            await asyncio.to_thread(self._check_rows, k, n + k, i, findings)
            if alone[k] is not None:
                await asyncio.to_thread(self._measure, k, i)
                await self._check_decoding(i, continue_, findings)
        return self._require_some(findings)

    async def end(self, dump: Dump, leave_out: set[int]) -> Findings:
        """Random sequences once more, each alone: right, and what the dataset has of them. Raises ProofError."""
        first = 2 * len(self.start_set)
        findings = Findings()
        for copy, i in enumerate(self.end_set, first):
            if i not in leave_out:
                logprobs = (await dump([copy]))[0]
                await asyncio.to_thread(self._check_logprobs, copy, self._name(i), logprobs, findings)
                if logprobs is not None:
                    await asyncio.to_thread(self._measure, copy, i)
                await asyncio.to_thread(self._check_rows, copy, None, i, findings)
        return self._require_some(findings)

    def _name(self, i: int) -> str:
        return f"Proof with sequence {self.dataset.sample_ids[i]} ({self.dataset.length[i]} tokens)"

    def _proof_rows(self, copy: int, state: str) -> Tensor:
        plan = self.placement.shards[0]
        row, length = int(self.placement.row[copy]), int(self.placement.length[copy])
        return read_rows(self.folder / (plan.file + PARTIAL), plan.layout, state, row, length)

    def _dataset_rows(self, i: int, state: str) -> Tensor:
        plan = self.dataset.shards[int(self.dataset.shard[i])]
        finished = self.folder / plan.file
        path = finished if finished.exists() else self.folder / (plan.file + PARTIAL)
        return read_rows(path, plan.layout, state, int(self.dataset.row[i]), int(self.dataset.length[i]))

    def _check_logprobs(self, copy: int, name: str, logprobs: Tensor | None, findings: Findings) -> None:
        if logprobs is None:  # not finite, this time: as its rows will show
            return
        states = {state: self._proof_rows(copy, state) for state in self._states}
        ids = torch.from_numpy(self.placement.input_ids(copy).astype(np.int64))
        agreement = logprob_agreement(states["final"], ids, logprobs, self.head)
        require_logprobs(name, agreement)
        for a, b in combinations(self._states, 2):
            if torch.equal(states[a], states[b]):
                raise ProofError(f"{name}: {a} and {b} are the same rows. Look at the plugin and the SGLang version.")
        findings.add(agreement)

    def _check_rows(self, copy: int, other: int | None, i: int, findings: Findings) -> None:
        """Rows of the proof against another copy of them, or against the dataset's."""
        for state in self._states:
            rows = self._proof_rows(copy, state)
            share = share_of_rows_off(
                self._proof_rows(other, state) if other is not None else self._dataset_rows(i, state), rows
            )
            findings.max_share_of_rows_off = max(findings.max_share_of_rows_off, share)
            require_rows(self._name(i), state, share, len(rows))

    async def _check_decoding(self, i: int, continue_: Continue, findings: Findings) -> None:
        ids = self.dataset.input_ids(i).tolist()
        count = min(DECODED, len(ids) - 1)
        if count > 1:
            decoded, prefilled = await continue_(ids[:-count], count)
            error = require_decoding(self._name(i), decoded[1:], prefilled[1:])
            findings.max_decode_error = max(findings.max_decode_error or 0.0, error)

    def _measure(self, copy: int, i: int) -> None:
        """What storing the rows in 8 bits would lose."""
        if self.quantisation is not None:
            self.quantisation.add(self._name(i), {state: self._proof_rows(copy, state) for state in self._states})

    @property
    def _states(self) -> tuple[str, ...]:
        return self.placement.shards[0].layout.shape.states

    def _require_some(self, findings: Findings) -> Findings:
        if findings.sequences == 0:
            raise ProofError(
                "Every proof sequence has hidden states that are not finite. Look at server.dtype and at the target."
            )
        return findings
