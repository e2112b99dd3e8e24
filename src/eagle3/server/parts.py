"""The processes that a server is made of: one of them can end, and the others wait for it without an end.

SGLang ends itself when its only scheduler is gone. With replicas (`dp_size`) it does not look: what was sent to the
lost one is never answered, and everything else goes on.
"""

import time
from contextlib import suppress

import psutil

from eagle3.server.process import ChildTree

TITLE = "sglang::"
"""How the names of these begin, as they set them themselves: scheduler_DP0_TP1, detokenizer, ..."""
LOOK_S = 1.0
ALONE_S = 8.0
"""From the end of a part to the news of it: SGLang may end by itself meanwhile (5 s after it has noticed), and its log
then tells more."""
COMM = 15
"""Characters that the kernel keeps of a name."""


class Parts:
    """Those of one server: learned while it starts, and then looked at.

    Each look is a few small files of /proc, however many processes the machine has; `learn` reads those of all.
    """

    def __init__(self, tree: ChildTree) -> None:
        self._tree = tree
        self._known: dict[int, tuple[psutil.Process, str]] = {}
        self._learned = self._looked = 0.0
        self._missed: tuple[float, str] | None = None

    def learn(self) -> None:
        """Takes in the parts that have come up, once a second at most."""
        now = time.monotonic()
        if now - self._learned < LOOK_S:
            return
        self._learned = now
        for process in self._tree.members():
            with suppress(psutil.Error):
                name = process.name()
                # A child that a part has forked has its title, and may end.
                if (
                    name.startswith(TITLE)
                    and process.pid not in self._known
                    and process.status() != psutil.STATUS_ZOMBIE
                    and (parent := process.parent()) is not None
                    and parent.name()[:COMM] != name[:COMM]
                ):
                    self._known[process.pid] = (process, name)

    def names(self) -> list[str]:
        return sorted(name for _, name in self._known.values())

    def lost(self) -> str | None:
        """A part that has been gone for `ALONE_S` while the server lives, as `process 71 (sglang::scheduler_DP1)`."""
        now = time.monotonic()
        if self._missed is None and now - self._looked >= LOOK_S:
            self._looked = now
            gone = [f"process {pid} ({name})" for pid, (process, name) in self._known.items() if _ended(process)]
            self._missed = (now, ", ".join(gone)) if gone else None
        return self._missed[1] if self._missed and now - self._missed[0] >= ALONE_S else None


def _ended(process: psutil.Process) -> bool:
    """Also one that its parent has not taken note of."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
