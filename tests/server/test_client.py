"""The client's own part; what SGLang answers is tested with a real server by tests/e2e/dumping.py."""

import asyncio
from functools import partial

import pytest

from eagle3.errors import ServerError
from eagle3.server.client import Client
from eagle3.server.process import free_port


def test_no_more_jobs_than_allowed_run_at_once_and_each_once():
    running, most = 0, 0

    async def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number * number

    async def collect() -> dict[int, int]:
        async with Client("http://127.0.0.1:1", concurrency=4) as client:
            return {key: result async for key, result in client.run((n, partial(job, n)) for n in range(50))}

    assert asyncio.run(collect()) == {n: n * n for n in range(50)}
    assert most == 4


def test_the_first_error_ends_the_others():
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append("cancelled")

    async def fails() -> None:
        raise ServerError("no")

    async def collect() -> None:
        async with Client("http://127.0.0.1:1", concurrency=3) as client:
            async for _ in client.run([(0, waits), (1, waits), (2, fails)]):
                pass

    with pytest.raises(ServerError, match="no"):
        asyncio.run(collect())
    assert ended == ["cancelled", "cancelled"]


def test_nobody_at_the_port_is_said_with_the_address():
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"

    async def ask() -> None:
        async with Client(url) as client:
            await client.model_info()

    with pytest.raises(ServerError, match=f"{url}/model_info: ClientConnectorError"):
        asyncio.run(ask())
