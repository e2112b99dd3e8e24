"""Requests that begin together."""

import asyncio

from eagle3.server.waves import Waves


def test_a_wave_goes_when_it_is_full_or_has_waited():
    order: list[tuple[str, int]] = []

    async def one(waves: Waves, number: int) -> None:
        order.append(("came", number))
        await waves.enter()
        order.append(("went", number))

    async def all_of_them() -> None:
        waves = Waves(3, wait_s=0.05)
        await asyncio.gather(*(one(waves, number) for number in range(7)))
        await asyncio.gather(one(waves, 7))

    asyncio.run(all_of_them())
    assert sorted(number for kind, number in order if kind == "went") == list(range(8))
    assert order.index(("went", 6)) > order.index(("went", 5)), "the last of seven waited for its time"
    assert order.index(("went", 0)) > order.index(("came", 2)), "the first waited for the third"


def test_a_cancelled_request_holds_nobody_up():
    async def one() -> str:
        waves = Waves(2, wait_s=600)
        gone = asyncio.ensure_future(waves.enter())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        stays = asyncio.ensure_future(waves.enter())
        await asyncio.sleep(0)
        await asyncio.wait_for(waves.enter(), 10)
        await asyncio.wait_for(stays, 10)
        return "all went"

    assert asyncio.run(one()) == "all went"
