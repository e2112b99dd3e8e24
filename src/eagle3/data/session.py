"""One server run of an extraction: prompts out, commits in, everything watched from one loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from eagle3.data.assembly import Assembly
from eagle3.data.ledger import BASE_ID, Committed, LedgerTail
from eagle3.data.meter import Meter
from eagle3.data.proving import Proving
from eagle3.data.ranks import Ranks
from eagle3.data.spreading import RUN_TOKENS, spread
from eagle3.errors import DataError, RejectedError, ServerError, ServerLostError, ServerStalledError
from eagle3.files.disk import GIB, free_bytes
from eagle3.server.client import Client
from eagle3.server.diagnosis import diagnose
from eagle3.server.launch import Server

T = TypeVar("T")
TICK_S = 0.05
GRACE_S = 5.0
"""From a failed request to the news that the server died, or to the next attempt."""
REQUESTS, GROUP_TOKENS = 8, RUN_TOKENS
"""Sequences in flight are spread over at least so many requests, each of about so many tokens at most."""
UNANSWERED_S = 20.0
"""From an answered request to its commit, when the plugin has nothing left to write."""
HANDFUL, SHARE = 5, 0.01
"""Sequences given up without failing: a few, or one in a hundred. So many missing do not change what a drafter learns;
more of them mean that something is wrong with the target or its precision, and waste the rest of the run."""


@dataclass
class Session:
    server: Server
    client: Client
    assembly: Assembly
    proving: Proving
    tail: LedgerTail
    nonce: str
    meter: Meter
    stall_timeout_s: float
    _proofs: dict[int, Committed] = field(default_factory=dict)
    _progress: tuple[object, float] = (None, 0.0)
    """What last changed, and when."""
    _proof_of: int = 0
    """While a proof is taken: how many sequences it dumps, those of the one before among them."""
    _polled: float = 0.0
    _resent: set[int] = field(default_factory=set)

    async def run(self) -> None:
        """Proof, all missing sequences, proof. Raises what stops it; every committed sequence stays."""
        manifest = self.assembly.manifest
        self._proof_of = 2 * len(self.proving.start_set)
        found = await self.proving.start(self.dump_for_proof, self.continue_for_proof)
        manifest.proof = {"start": found.record()}
        if doubt := found.doubt(manifest.vocab_size):
            self.meter.reporter.note(doubt)
        self._record_quantisation()
        manifest.save(self.assembly.folder)
        self._proof_of = 0
        await self.stream()
        self.assembly.collect(wait=True)
        given_up = set(self.assembly.quarantined)
        self._proof_of = len(self.proving.placement)
        manifest.proof["end"] = (await self.proving.end(self.dump_for_proof, given_up)).record()
        self._record_quantisation()

    def _record_quantisation(self) -> None:
        if self.proving.quantisation is not None:
            self.assembly.manifest.quantisation = self.proving.quantisation.record()

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(len(self.server.ready), self.server.command.sglang_version)

    def rid(self, sample_id: int) -> str:
        return f"eagle3-{self.nonce}-{sample_id}"

    async def dump_for_proof(self, copies: list[int]) -> list[Tensor | None]:
        """See `proving.Dump`."""
        placement = self.proving.placement
        ids = [int(placement.sample_ids[c]) for c in copies]
        prompts = [placement.input_ids(c).tolist() for c in copies]
        asked = [
            self._ask([i], len(prompt), partial(self.client.prompt_logprobs, prompt, self.rid(i)))
            for prompt, i in zip(prompts, ids, strict=True)
        ]
        await self._watch(asked, ids)
        return [
            None if self._proofs[i].bad else torch.tensor(task.result(), dtype=torch.float32)
            for i, task in zip(ids, asked, strict=True)
        ]

    async def continue_for_proof(self, prompt: list[int], count: int) -> tuple[Tensor, Tensor]:
        """See `proving.Continue`."""
        decoding = asyncio.ensure_future(self._twice(partial(self.client.continuation, prompt, count)))
        await self._watch([decoding])
        tokens, decoded = decoding.result()
        prefill = asyncio.ensure_future(self._twice(partial(self.client.prompt_logprobs, [*prompt, *tokens])))
        await self._watch([prefill])
        return torch.tensor(decoded), torch.tensor(prefill.result()[-count:])

    async def _watch(self, asked: Sequence[asyncio.Future[Any]], dumped: Sequence[int] = ()) -> None:
        """Until all are answered and these sequences of the proof committed. Raises what goes wrong meanwhile."""
        self._progress = (None, 0.0)  # what was computed here since the last request is no stall of the server's
        try:
            while not all(task.done() for task in asked) or any(i not in self._proofs for i in dumped):
                for task in asked:
                    if task.done() and (error := task.exception()):
                        raise error
                self.poll()
                await asyncio.sleep(TICK_S)
        finally:
            await _cancel(asked)

    async def stream(self) -> None:
        placement, assembly = self.assembly.placement, self.assembly
        todo = spread(assembly.missing(), placement.shard, placement.length)
        running: dict[asyncio.Task[None], list[int]] = {}
        answered: dict[int, float] = {}
        again: list[int] = []
        self.meter.restart()
        self._progress = (None, 0.0)
        try:
            while assembly.done_sequences < len(placement):
                room = self.client.concurrency - sum(map(len, running.values()))
                while room > 0 and (
                    group := [again.pop()]
                    if again
                    else next_group(placement.length, todo, room, self.client.concurrency // self.ranks.count)
                ):
                    room -= len(group)
                    running[self._send(group)] = group
                if running:
                    await asyncio.wait(running, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(TICK_S)
                for task in [task for task in running if task.done()]:
                    group = running.pop(task)
                    if error := task.exception():
                        if not isinstance(error, RejectedError):
                            raise error
                        if len(group) == 1:
                            self._give_up(group[0], f"rejected by the server: {error}")
                    # Where a group was refused for one of its prompts, the others are sent again when missed.
                    answered |= dict.fromkeys(group, time.monotonic())
                self.poll()
                again += self._lost(answered)
        finally:
            await _cancel(list(running))

    def _send(self, group: list[int]) -> asyncio.Task[None]:
        placement = self.assembly.placement
        for i in group:
            self.assembly.make_room(i)
        prompts = [placement.input_ids(i).tolist() for i in group]
        ids = [int(placement.sample_ids[i]) for i in group]
        return self._ask(ids, sum(map(len, prompts)), partial(self.client.prefill, prompts, [self.rid(i) for i in ids]))

    def _ask(self, ids: list[int], tokens: int, ask: Callable[..., Awaitable[T]]) -> asyncio.Task[T]:
        """Sends a request for sequences that are to be dumped, to a rank of ours."""
        route = self.ranks.begin(ids, tokens)
        task = asyncio.ensure_future(self._twice(partial(ask, route=route)))
        task.add_done_callback(lambda _: self.ranks.end(route, tokens))
        return task

    def _lost(self, answered: dict[int, float]) -> list[int]:
        """Sequences that the server has answered and the plugin never wrote, to be sent once more."""
        for i in [i for i in answered if self.assembly.settled[i]]:
            del answered[i]
        now = time.monotonic()
        lost = [i for i, when in answered.items() if now - when > UNANSWERED_S]
        if not lost or self.meter.status.get("buffers_in_use", 0) or self.meter.status.get("queue_depth", 0):
            return []
        for i in lost:
            del answered[i]
            if i in self._resent:
                self._give_up(i, "answered by the server, but not dumped")
        fresh = [i for i in lost if i not in self._resent]
        self._resent.update(fresh)
        return fresh

    def poll(self) -> None:
        """Takes new commits and looks whether all is well. Raises what is not."""
        if time.monotonic() - self._polled < TICK_S:
            return
        self._polled = time.monotonic()
        self.server.check()
        for entry in self.tail.poll():
            if entry.sample_id >= BASE_ID:
                self._proofs[entry.sample_id] = entry
            elif self.assembly.accept(entry) and entry.bad:
                self._count_given_up()
        self.assembly.collect()
        if self.meter.due():
            status = self.server.dump_status()
            if status["error"]:
                raise _dump_error(status["error"], self.assembly.folder)
            self.meter.report(self.assembly, status, (len(self._proofs), self._proof_of) if self._proof_of else None)
        self._check_stall()

    def _give_up(self, i: int, reason: str) -> None:
        if not self.assembly.settled[i]:
            self.assembly.quarantine(i, reason)
            self._count_given_up()

    def _count_given_up(self) -> None:
        bad, m = len(self.assembly.quarantined), len(self.assembly.placement)
        if bad > max(HANDFUL, SHARE * m):
            reasons = sorted(set(self.assembly.quarantined.values()))
            raise DataError(
                f"{bad} of {m} sequences can't be used ({'; '.join(reasons[:3])}): more than {HANDFUL} and more than "
                f"{SHARE:.0%}. Hidden states that are not finite come from the target's weights or precision: look at "
                "server.dtype, server.flags and the server's log."
            )

    def _check_stall(self) -> None:
        now = time.monotonic()
        state = (self.assembly.done_sequences, len(self._proofs), self.meter.status.get("bytes"))
        if state != self._progress[0]:
            self._progress = (state, now)
        elif now - self._progress[1] > self.stall_timeout_s:
            raise stalled(self.server, self.stall_timeout_s)

    async def _twice(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asks again when the server lives on after a failed request: a connection breaks now and then.

        Nothing is dumped twice: the plugin begins a sequence anew, or ignores what is committed.
        """
        try:
            return await ask()
        except RejectedError:
            raise
        except ServerError:
            deadline = time.monotonic() + GRACE_S
            while time.monotonic() < deadline:
                self.server.check()  # says how it died
                await asyncio.sleep(TICK_S)
            return await ask()


def next_group(length: np.ndarray, todo: Iterator[int], room: int, concurrency: int) -> list[int]:
    """The next sequences, to be sent in one request, so that neither side is busy with HTTP alone: at most `room`."""
    most = min(room, max(1, concurrency // REQUESTS))
    group: list[int] = []
    tokens = 0
    while len(group) < most and tokens < GROUP_TOKENS and (i := next(todo, None)) is not None:
        group.append(i)
        tokens += int(length[i])
    return group


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def stalled(server: Server, seconds: float) -> ServerStalledError:
    """What to say of a server that has not moved for so long; looks at it for a few seconds."""
    reason, *seen = diagnose(server)
    lines = "".join(f"\n    {line}" for line in seen)
    return ServerStalledError(
        f"the server has made no progress for {seconds:g} s (server.stall_timeout_s): {reason}. Log: {server.tree.log}"
        f"{lines}"
    )


def _dump_error(text: str, folder: Path) -> DataError | ServerError:
    if "No space left" in text or "quota" in text:
        return DataError(
            f"The disk of {folder} is full ({free_bytes(folder) / GIB:.2f} GiB free). Free some space, then run the "
            "same command again."
        )
    # What kills a process of the server's (the kernel, out of memory) need not kill the next one.
    kind = ServerLostError if "was it killed?" in text else ServerError
    return kind(f"the dump plugin stopped: {text}")
