"""The servers that are measured, started when their turn comes: side by side, or one at a time."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from eagle3.config.schema import Config
from eagle3.errors import ServerError
from eagle3.evaluation.figures import NONE
from eagle3.evaluation.load import put_load
from eagle3.evaluation.prompts import PromptSets
from eagle3.metrics import Reporter
from eagle3.server.flags import CAPTURE_FOLDER, ServerCommand
from eagle3.server.launch import Server

WARM_UP_TOKENS = 16


class Servers:
    """Server by name; each is warm, and its captured boundaries are read back, before it is given out."""

    def __init__(
        self,
        cfg: Config,
        commands: dict[str, ServerCommand],
        boundaries: list[int],
        sets: PromptSets,
        logs: Path,
        reporter: Reporter,
    ) -> None:
        """`boundaries`: what the drafter of every server but the first, `none`, was trained on."""
        self.cfg, self.commands, self.boundaries = cfg, commands, boundaries
        self.sets, self.logs, self.reporter = sets, logs, reporter
        self._up: dict[str, Server] = {}
        self._stopping = Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Whatever was started has ended after the block."""
        try:
            yield
        finally:
            self._stop()

    def _stop(self) -> None:
        """All at a time: each takes seconds to end in order."""
        servers = [*self._up.values()]
        self._up.clear()
        if servers:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(Server.stop, servers))

    def use(self, name: str) -> Server:
        """The server. Raises ServerError where it does not come up, or captures other boundaries than the drafter's."""
        if name not in self._up:
            if not self.cfg.evaluate.beside:
                self._stop()
            self._start([*self.commands] if self.cfg.evaluate.beside else [name])
        return self._up[name]

    def _start(self, names: list[str]) -> None:
        """All at a time: what takes long is one core's work for each."""
        version, began = self.commands[names[0]].sglang_version, time.monotonic()
        self.reporter.note(f"starting SGLang {version}: {', '.join(names)}; logs: {self.logs}/served-*.log")
        with ThreadPoolExecutor(len(names)) as pool:
            jobs = {pool.submit(self._start_one, name): name for name in names}
            try:
                for job in as_completed(jobs):
                    seconds = job.result()
                    self.reporter.note(f"{jobs[job]}: ready and warm in {seconds:.0f} s")
            except BaseException:  # Ctrl-C, or one that failed: the others need not come up any more
                self._stopping.set()
                raise
        self.reporter.note(f"{len(names)} of {len(self.commands)} servers up in {time.monotonic() - began:.0f} s")

    def _start_one(self, name: str) -> float:
        command, began = self.commands[name], time.monotonic()
        capture = Path(command.added_env[CAPTURE_FOLDER])
        capture.mkdir(parents=True, exist_ok=True)
        for stale in capture.glob("capture-*"):
            stale.unlink()
        log, timeout_s = self.logs / f"served-{name}.log", self.cfg.server.startup_timeout_s
        server = Server.start(command, log=log, timeout_s=timeout_s, on_wait=self._go_on)
        self._up[name] = server
        most = max(self.cfg.evaluate.concurrency)
        for temperature in self.cfg.evaluate.temperatures:
            self._go_on()
            given = (self.sets.prompts, self.sets.end_ids, temperature, most, WARM_UP_TOKENS)
            asyncio.run(put_load(server, name, -1, *given))
        require_captured(capture, [] if name == NONE else self.boundaries, name)
        return time.monotonic() - began

    def _go_on(self, waited_s: float = 0.0) -> None:
        """Raises ServerError where another server's start has failed."""
        if self._stopping.is_set():
            raise ServerError(f"given up after {waited_s:.0f} s, with the others")


def require_captured(folder: Path, boundaries: list[int], name: str) -> None:
    """What the running target hands to its drafter must be what the drafter was trained on.

    Args:
        boundaries: [] for a server without a drafter.

    Raises:
        ServerError: it is not, or the server does not say.
    """
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("capture-*.json"))]
    if not reports:
        raise ServerError(f"{name}: the server did not report what it captures in {folder}; is SGLANG_PLUGINS set?")
    for report in reports:
        if "error" in report:
            raise ServerError(f"{name}: what the server captures can't be read: {report['error']}")
        if report["boundaries"] != boundaries:
            raise ServerError(
                f"{name}: SGLang {report['sglang_version']} captures boundaries {report['boundaries']} of "
                f"{report['model']}, and the drafter was trained on {boundaries}: what it drafts would mean nothing. "
                f"Export it for this version: eagle3 export DRAFTER --format sglang "
                f"--sglang-version {report['sglang_version']}"
            )
