"""One load on a running server: prompts sent with so many at a time, and what came back of each."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eagle3.errors import RejectedError, ServerError
from eagle3.evaluation.prompts import Prompt, until_end
from eagle3.server.client import Client, Completion
from eagle3.server.launch import Server

T = TypeVar("T")
FOREVER_S = 1e6
"""A reply may take as long as the server lives; `alive` sees to the rest."""
TICK_S = 1.0
FLUSHES, FLUSH_S = 50, 0.1


@dataclass(frozen=True)
class Reply:
    set: str
    key: str
    asked: str
    """`Prompt.asked`."""
    output_ids: list[int]
    seconds: float
    """From sending to the whole reply."""
    passes: int
    """Of the target, after the prompt's; 0 without speculation, where each token is one."""
    histogram: list[int]
    """Passes in which exactly 0, 1, 2, ... draft tokens were accepted; empty without speculation."""


@dataclass(frozen=True)
class Load:
    """One measurement, as it is recorded."""

    server: str
    round: int
    temperature: float
    concurrency: int
    seconds: float
    """From the first request to the last reply."""
    replies: list[Reply] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(reply.output_ids) for reply in self.replies)

    @property
    def rate(self) -> float:
        """tokens/s."""
        return self.tokens / self.seconds

    @staticmethod
    def of(row: dict[str, Any]) -> "Load":
        """The inverse of `dataclasses.asdict`."""
        return Load(**{**row, "replies": [Reply(**reply) for reply in row["replies"]]})


async def put_load(
    server: Server,
    name: str,
    round_: int,
    prompts: Sequence[Prompt],
    end_ids: Sequence[int],
    temperature: float,
    concurrency: int,
    max_new_tokens: int,
) -> Load:
    """All prompts, with an empty prefix cache.

    Raises:
        ServerError: the server died, or gave up on an answer.
    """
    async with Client(server.url, concurrency, timeout_s=FOREVER_S) as client:

        async def ask(prompt: Prompt) -> Reply:
            began = time.perf_counter()
            done = await client.complete(prompt.input_ids, max_new_tokens, end_ids, temperature)
            return _reply(prompt, done, end_ids, time.perf_counter() - began)

        async def ask_all() -> list[Reply]:
            jobs = ((i, lambda prompt=prompt: ask(prompt)) for i, prompt in enumerate(prompts))
            found = {i: reply async for i, reply in client.run(jobs)}
            return [found[i] for i in sorted(found)]

        await alive(server, _flush(client))
        began = time.perf_counter()
        replies = await alive(server, ask_all())
        return Load(name, round_, temperature, concurrency, time.perf_counter() - began, replies)


async def _flush(client: Client) -> None:
    """A server that has just replied may not be idle yet, and refuses for a moment."""
    for _ in range(FLUSHES):
        try:
            return await client.flush_cache()
        except RejectedError:
            await asyncio.sleep(FLUSH_S)
    await client.flush_cache()


def _reply(prompt: Prompt, done: Completion, end_ids: Sequence[int], seconds: float) -> Reply:
    if done.finish_reason not in ("stop", "length"):
        raise ServerError(f"the server ended an answer with {done.finish_reason!r}: {done.meta}")
    meta = done.meta
    # Up to 0.5.11 the histogram has another name.
    histogram = meta.get("spec_correct_drafts_histogram") or meta.get("spec_accept_histogram") or []
    # Where one pass reaches both the end and the longest length, older SGLang (0.5.17; not 0.5.23) keeps what was
    # accepted after the end.
    ids = until_end(done.output_ids, end_ids)
    return Reply(
        prompt.set, prompt.key, prompt.asked, ids, seconds, int(meta.get("spec_verify_ct", 0)), list(histogram)
    )


async def alive(server: Server, work: Coroutine[Any, Any, T]) -> T:
    """The result, or a ServerError as soon as the server is gone."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=TICK_S)
            server.check()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
