"""Keeps a process tree from outliving whoever started it: `python warden.py PARENT GRACE COMMAND...`.

Runs in between the project and a child (server, trainer), in a session of its own, and owns everything that the child
starts: it is the tree's subreaper, so a grandchild whose parent died comes to it instead of to init. When the child
ends, or the project's process is gone (even by kill -9), or on SIGTERM, it ends the tree and exits as the child did.

PR_SET_PDEATHSIG alone would not do: it fires when the *thread* that started the child ends, and does not reach
grandchildren.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.1
_libc = ctypes.CDLL(None, use_errno=True)
_asked: list[int] = []


def _note(number: int, frame: FrameType | None) -> None:
    _asked.append(number)


def _die_with_warden() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _descendants() -> list[psutil.Process]:
    return [
        process for process in psutil.Process().children(recursive=True) if process.status() != psutil.STATUS_ZOMBIE
    ]


def _kill_all() -> None:
    """Repeatedly: a process may start another one while the list is read."""
    for _ in range(100):
        left = []
        with contextlib.suppress(psutil.NoSuchProcess):
            left = _descendants()
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def _end(child: subprocess.Popen[bytes], grace: float, first: int) -> None:
    child.send_signal(first)
    deadline = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < deadline:
        if len(_asked) > 1:  # asked again: at once
            break
        time.sleep(POLL_S)


def main() -> int:
    parent, grace = int(sys.argv[1]), float(sys.argv[2])
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _note)
    # Whoever started us held them back, so that none could come between our start and its knowing of us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    child = subprocess.Popen(sys.argv[3:], preexec_fn=_die_with_warden)  # noqa: PLW1509 (no threads here)
    while child.poll() is None:
        if _asked:
            _end(child, grace, _asked[0])
            break
        if os.getppid() != parent:
            _end(child, grace, signal.SIGTERM)
            break
        time.sleep(POLL_S)
    _kill_all()
    code = child.wait()
    if code < 0:  # die as it did, so that the parent sees the signal
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1)
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main())
