"""Requests that wait a moment for each other, so that a server that decodes takes them in by one pass.

While SGLang decodes, every pass in which it takes in new prompts stops all the others, and one for a single prompt
costs about as much as one for dozens: 16,000 answers, 256 at a time, coming one by one, took 6,400 such passes. A wave
leaves some of the places empty for a moment and saves nearly all of them.
"""

import asyncio

WAIT_S = 0.25
"""The longest that a request waits for others; small against an answer where a server is slow."""


class Waves:
    """`await enter()` returns for `together` callers at once, or for fewer after WAIT_S."""

    def __init__(self, together: int, wait_s: float = WAIT_S) -> None:
        self.together, self.wait_s = together, wait_s
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        if len(self._waiting) >= self.together:
            self._go()
        elif self._timer is None:
            self._timer = loop.call_later(self.wait_s, self._go)
        try:
            await place
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            raise

    def _go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, wave, self._waiting = None, self._waiting, []
        for place in wave:
            if not place.done():  # cancelled a moment ago
                place.set_result(None)
