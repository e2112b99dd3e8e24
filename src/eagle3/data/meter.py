"""How fast an extraction goes, told about once a second."""

import time
from collections import deque
from typing import Any

from eagle3.data.assembly import Assembly
from eagle3.files.disk import GIB, free_bytes
from eagle3.metrics import Reporter

PERIOD_S = 1.0
WINDOW = 15
"""Reports over which a rate is taken."""


class Meter:
    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.status: dict[str, Any] = {}
        """The plugin's figures as of the last report."""
        self._last = float("-inf")
        self._window: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def restart(self) -> None:
        """Forgets the past, when what is measured begins only now."""
        self._window.clear()

    def due(self) -> bool:
        return time.monotonic() - self._last >= PERIOD_S

    def report(self, assembly: Assembly, status: dict[str, Any], proof: tuple[int, int] | None = None) -> None:
        """One row of figures, and the progress bar.

        Args:
            proof: while a proof is taken, how many of its sequences are dumped, and how many there are.
        """
        self._last = now = time.monotonic()
        self.status = status
        tokens = assembly.done_tokens
        self._window.append((now, tokens))
        first, before = self._window[0]
        rate = (tokens - before) / (now - first) if now > first else 0.0
        shape = assembly.manifest.shape
        figures = {
            "tokens_per_s": rate,
            "gb_per_s": rate * shape.token_bytes / 1e9,
            "gb": tokens * shape.token_bytes / 1e9,
            "queue": status.get("queue_depth", 0),
            "stalls": status.get("stalls", 0),
            "free_gib": free_bytes(assembly.folder) / GIB,
        }
        done, total = assembly.done_sequences, len(assembly.placement)
        if proof is None:
            self.reporter.progress(done, total, unit="sequences", **figures)
        else:
            self.reporter.progress(*proof, unit="proof sequences", **figures)
        row = {**figures, "sequences": done, "tokens": tokens, "quarantined": len(assembly.quarantined)}
        self.reporter.log({f"extract/{name}": value for name, value in row.items()}, step=done)
