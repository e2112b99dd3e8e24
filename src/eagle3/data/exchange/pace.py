"""How far an import or an export is, told a few times a second."""

import time

from eagle3.metrics import Reporter

PERIOD_S = 0.5


class Pace:
    def __init__(self, reporter: Reporter, done: int, total: int, token_bytes: int = 0) -> None:
        """
        Args:
            done: sequences that are there already.
            token_bytes: of all states of a token, for GB/s; 0 where none are moved.
        """
        self._reporter, self._done, self._total, self._token_bytes = reporter, done, total, token_bytes
        self._tokens, self._began, self._told = 0, time.monotonic(), 0.0
        self._tell()

    def add(self, tokens: int) -> None:
        """One more sequence."""
        self._done += 1
        self._tokens += tokens
        if time.monotonic() - self._told >= PERIOD_S or self._done == self._total:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        rate = self._tokens / max(self._told - self._began, 1e-9)
        figures = {"tokens_per_s": rate}
        if self._token_bytes:
            figures["gb_per_s"] = rate * self._token_bytes / 1e9
        self._reporter.progress(self._done, self._total, unit="sequences", **figures)
