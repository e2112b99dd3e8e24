"""HTTP to a running SGLang server: what it serves, and batches of requests with bounded concurrency.

With aiohttp: what httpx does for a request grows with the connections that are open, to some 10 ms at 128 of them, and
a GPU that prefills 200,000 tokens/s starves.

Retries only where a repeated request changes nothing: looking things up, and computing without a request id of the
dump. A prefill that is dumped is repeated only when it never left (no connection).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import stamina

from eagle3.errors import RejectedError, ServerError

T = TypeVar("T")
ATTEMPTS = 3
NOWHERE: Mapping[str, Any] = MappingProxyType({})
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""The connection failed, or no reply came in time."""
_NEVER_SENT = (aiohttp.ClientConnectorError,)


@dataclass(frozen=True)
class Completion:
    """A generated answer."""

    output_ids: list[int]
    """Tokens after the prompt, with the one that ended it."""
    finish_reason: str
    """stop, length or abort."""
    meta: dict[str, Any]
    """SGLang's `meta_info`: speculative acceptance, latencies."""


class Client:
    """Asynchronous client. `async with Client(url, concurrency) as client: ...`

    Whatever fails is a ServerError; a RejectedError where the server is well and refuses the request itself.
    """

    def __init__(self, url: str, concurrency: int = 64, timeout_s: float = 600.0) -> None:
        """
        Args:
            concurrency: requests in flight.
            timeout_s: for one reply; requests that wait in the server's queue count.
        """
        self.url = url
        self.concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # Our own slots bound what is open; a limit of the pool's could not tell waiting from a server that hangs.
        self._http = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._http is not None
        await self._http.close()

    async def model_info(self) -> dict[str, Any]:
        return await self._get("/model_info")

    async def server_info(self) -> dict[str, Any]:
        """Effective arguments, `version`, `internal_states`. Holds paths; secrets are redacted by SGLang."""
        return await self._get("/server_info")

    async def flush_cache(self) -> None:
        """Also resets the averages of speculative acceptance."""
        await self._call("POST", "/flush_cache", None, _BROKEN, text=True)

    async def prefill(
        self, prompts: Sequence[Sequence[int]], rids: Sequence[str], route: Mapping[str, Any] = NOWHERE
    ) -> None:
        """Runs prompts through the model and nothing else, in one request; the plugin dumps those with a dataset's rid.

        A RejectedError does not tell which of several prompts is refused, and none of them may have been computed.

        Args:
            route: what names a data-parallel rank; empty where the server may choose.
        """
        body: dict[str, Any] = {"sampling_params": {"max_new_tokens": 0}, **route}
        if len(prompts) == 1:  # so that whatever is wrong with it is an error of the request
            body |= {"input_ids": list(prompts[0]), "rid": rids[0]}
        else:
            body |= {"input_ids": [list(prompt) for prompt in prompts], "rid": list(rids)}
        async with self._slots:
            await self._call("POST", "/generate", body, _NEVER_SENT)

    async def prompt_logprobs(
        self, input_ids: Sequence[int], rid: str | None = None, route: Mapping[str, Any] = NOWHERE
    ) -> list[float]:
        """Natural log-probability of each token of the prompt but the first: `len(input_ids) - 1` numbers.

        Where the logits are not finite the server's JSON has a null, and this a NaN.

        Args:
            rid: a request id of the dataset dumps the prompt in the same pass.
            route: as in `prefill`.
        """
        body: dict[str, Any] = {
            **route,
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        if rid is not None:
            body["rid"] = rid
        async with self._slots:
            reply = await self._call("POST", "/generate", body, _BROKEN if rid is None else _NEVER_SENT)
        entries = reply["meta_info"]["input_token_logprobs"]
        # SGLang reports the vocabulary's last token as 0.
        if len(entries) != len(input_ids) or any(e[1] not in (t, 0) for e, t in zip(entries, input_ids, strict=True)):
            raise ServerError(f"asked for the log-probabilities of {len(input_ids)} tokens, got those of other tokens")
        return [float("nan") if entry[0] is None else float(entry[0]) for entry in entries[1:]]

    async def complete(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        stop_token_ids: Sequence[int] | None = None,
        temperature: float = 0.0,
    ) -> Completion:
        """The continuation, greedy at temperature 0, up to the model's end token or one of `stop_token_ids`."""
        sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature}
        if stop_token_ids:
            sampling["stop_token_ids"] = list(stop_token_ids)
        async with self._slots:
            reply = await self._call(
                "POST", "/generate", {"input_ids": list(input_ids), "sampling_params": sampling}, _BROKEN
            )
        meta = reply["meta_info"]
        reason = meta["finish_reason"]
        return Completion(reply["output_ids"], reason["type"] if isinstance(reason, dict) else str(reason), meta)

    async def next_logprobs(self, input_ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Natural log-probability of each of `tokens` as the next one."""
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "token_ids_logprob": list(tokens),
        }
        async with self._slots:
            reply = await self._call("POST", "/generate", body, _BROKEN)
        found = {int(entry[1]): float(entry[0]) for entry in reply["meta_info"]["output_token_ids_logprobs"][0]}
        return [found[token] for token in tokens]

    async def continuation(self, input_ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
        """Exactly `count` greedy tokens, past the model's end token too, and the log-probability of each."""
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True},
            "return_logprob": True,
        }
        async with self._slots:
            reply = await self._call("POST", "/generate", body, _BROKEN)
        entries = reply["meta_info"]["output_token_logprobs"]
        if len(entries) != count:
            raise ServerError(f"asked for a continuation of {count} tokens, got {len(entries)}")
        return [int(entry[1]) for entry in entries], [float(entry[0]) for entry in entries]

    async def decode(self, input_ids: Sequence[int], count: int) -> None:
        """Decodes exactly `count` tokens, past the model's end token too."""
        sampling = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True}
        async with self._slots:
            reply = await self._call(
                "POST", "/generate", {"input_ids": list(input_ids), "sampling_params": sampling}, ()
            )
        if (got := len(reply["output_ids"])) != count:
            raise ServerError(f"asked for {count} tokens, got {got}")

    async def run(self, jobs: Iterable[tuple[T, Callable[[], Awaitable[Any]]]]) -> AsyncIterator[tuple[T, Any]]:
        """Runs jobs with at most `concurrency` begun, lazily taken from `jobs`; gives (key, result) as they end.

        The first error cancels the rest and is raised; so does leaving the loop.
        """
        source = iter(jobs)
        running: dict[asyncio.Task[Any], T] = {}
        try:
            while True:
                while len(running) < self.concurrency and (job := next(source, None)) is not None:
                    running[asyncio.ensure_future(job[1]())] = job[0]
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._call("GET", path, None, _BROKEN)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        retried: tuple[type[Exception], ...],
        *,
        text: bool = False,
    ) -> Any:
        if self._http is None:
            raise RuntimeError("use `async with Client(...)`")
        http = self._http

        @stamina.retry(on=retried, attempts=ATTEMPTS, wait_initial=0.2, wait_max=2.0)
        async def send() -> tuple[int, bytes]:
            async with http.request(method, f"{self.url}{path}", json=body) as reply:
                return reply.status, await reply.read()

        try:
            status, content = await send()
        except _BROKEN as error:
            raise ServerError(f"{self.url}{path}: {type(error).__name__} {error}".rstrip()) from error
        if status != HTTPStatus.OK:
            kind = RejectedError if status == HTTPStatus.BAD_REQUEST else ServerError
            raise kind(f"{self.url}{path}: HTTP {status}: {content.decode(errors='replace')[:500]}")
        return content.decode() if text else json.loads(content)
