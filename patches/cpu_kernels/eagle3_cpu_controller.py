"""SGLang plugin: the process that deals requests out to data-parallel ranks waits for them.

It would look for one all the time, and take as much of the cores that it shares as a rank does. SGLang's flag against
that (`sleep_on_idle`) is for schedulers only.
"""

import functools
import sys
from typing import Any

MODULE = "sglang.srt.managers.data_parallel_controller"
WAIT_MS = 100
"""Until the loop goes round again without a request; one that comes is taken at once."""


class Patient:
    """A ZeroMQ socket that waits a moment before something is received without waiting."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __getattr__(self, name: str) -> Any:
        if name.startswith("recv"):
            self._socket.poll(WAIT_MS)
        return getattr(self._socket, name)


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; called in each of the server's processes."""
    if MODULE not in sys.modules:  # this process deals nothing out
        return
    controller = sys.modules[MODULE].DataParallelController
    original = controller.event_loop

    @functools.wraps(original)
    def event_loop(self: Any) -> None:
        self.recv_from_tokenizer = Patient(self.recv_from_tokenizer)
        original(self)

    controller.event_loop = event_loop
