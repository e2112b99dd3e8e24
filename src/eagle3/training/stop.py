"""Ctrl-C and SIGTERM: training ends at the next point from which it can be continued exactly."""

import signal
from types import FrameType

from eagle3.errors import Interrupted

PATIENCE = 3
"""So many signals end the process where it is. One Ctrl-C is two: the terminal's, and one that the parent passes on."""


class StopSignal:
    """Where there is nothing to save, a signal raises `Interrupted` at once; else it is noted for whoever saves."""

    def __init__(self) -> None:
        self.received = 0
        self.graceful = False
        """Whether somebody will look at `requested` soon."""

    @property
    def requested(self) -> bool:
        return self.received > 0

    def install(self) -> None:
        """For SIGINT and SIGTERM, in place of the handlers there are."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received += 1
        if not self.graceful or self.received >= PATIENCE:
            raise Interrupted(f"Interrupted by {signal.Signals(number).name}; the same command continues.")
