"""Child processes: a tree that is started, watched and ended as one. For the server and for the trainer."""

import atexit
import contextlib
import errno
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from eagle3.errors import ServerError
from eagle3.server import warden

PORTS = (10_240, 32_768)
"""From which a free port is drawn, the second one excluded. SGLang 0.5.11 to 0.5.15 adds 10,000 to its port for a gRPC
server that is off, and ends when that is too much."""
SYSTEM_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_TRIES = 100

NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Not passed on: without bytecode each of a server's processes compiles SGLang anew, which is 15 s of CPU or more."""


class ChildTree:
    """A command in a session of its own whose whole tree ends when asked to, when it fails, or when we are gone.

    Whoever is interrupted before it can say `with` loses nothing: what was started is stopped when this program ends.

    `returncode` and `pid` are those of the warden (warden.py), which exits exactly as the command does.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        grace_s: float = 15.0,
        keep_open: Sequence[int] = (),
    ) -> None:
        """
        Args:
            env: the whole environment; but Python keeps its bytecode.
            log: standard output and error are appended to it.
            grace_s: from SIGTERM to SIGKILL.
            keep_open: descriptors that stay open until the whole tree has ended, even when we are killed: locks.
        """
        self.log = log
        self.grace_s = grace_s
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        wardened = [sys.executable, "-P", str(Path(warden.__file__)), str(os.getpid()), str(grace_s), *argv]
        try:
            with log.open("ab") as out, _signals_held():
                self._process = subprocess.Popen(
                    wardened,
                    env={name: value for name, value in env.items() if name != NO_BYTECODE},
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    pass_fds=keep_open,
                )
                atexit.register(self.stop)
        except OSError as error:
            raise ServerError(f"cannot start {argv[0]}: {error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit code, or None when it still runs after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def members(self) -> list[psutil.Process]:
        """The live processes of the tree, the warden first."""
        if self._process.poll() is not None:  # its number may be another's by now
            return []
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> int:
        """Ends the tree (SIGTERM, then SIGKILL after the grace) and gives the exit code. Nothing is left of it."""
        members = self.members()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            if self.wait(self.grace_s + 5.0) is None:  # the warden itself is stuck
                self.kill()
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(members, timeout=5.0)
        atexit.unregister(self.stop)
        return self._process.wait()

    def kill(self) -> None:
        """Ends the tree at once."""
        for process in reversed(self.members()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def tail(self, lines: int = 20) -> str:
        """The last lines that this child wrote to its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - 64 * 1024))
                return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def wrote(self, text: str) -> bool:
        """Whether a text is in what this child has logged so far."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self._log_start)
            return text.encode() in file.read()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP arrive after the block: not between a process's start and our knowing it.

    The started process inherits this; the warden takes it back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def free_port(host: str) -> int:
    """A port that nobody has, and that the system gives nobody unasked.

    A server listens some ten seconds after this, and until then connections of other programs are given ports all the
    time: one of the system's own choice would be taken by then now and again.

    Raises ServerError when `host` is no address of this machine, or has no port left.
    """
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().randrange(*_own_ports())
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                text = f"server.host={host}: {error.strerror or error}; 127.0.0.1 is this machine"
                raise ServerError(text) from error
            return port
    raise ServerError(f"server.host={host}: no free port was found; set server.port")


def _own_ports() -> tuple[int, int]:
    """Those of PORTS that are below the system's own, unless these leave next to nothing."""
    try:
        lowest = int(SYSTEM_PORTS.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return PORTS
    return (PORTS[0], min(lowest, PORTS[1])) if lowest > PORTS[0] + 1000 else PORTS


def check_port(host: str, port: int) -> None:
    """Raises ServerError when the port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ServerError(
                f"server.host={host} server.port={port}: {error.strerror}; server.port=0 takes a free port"
            ) from error
