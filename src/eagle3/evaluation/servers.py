"""The servers that are measured, started when their turn comes: side by side, or one at a time."""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from eagle3.config.schema import Config
from eagle3.errors import ServerError
from eagle3.evaluation.figures import NONE, UNTRAINED
from eagle3.evaluation.load import put_load
from eagle3.evaluation.prompts import PromptSets
from eagle3.metrics import Reporter
from eagle3.server.flags import CAPTURE_FOLDER, ServerCommand
from eagle3.server.launch import Server

WARM_UP_TOKENS = 16


class CapturedError(ServerError):
    """What the target hands to its drafter is not what that was trained on, or can't be told."""


class Servers:
    """Server by name; each is warm, and its captured boundaries are read back, before it is given out.

    One that fails is given up, and the others go on: a grid may have a setting that SGLang or the GPU can't take.
    """

    def __init__(
        self,
        cfg: Config,
        commands: dict[str, ServerCommand],
        boundaries: list[int],
        sets: PromptSets,
        logs: Path,
        reporter: Reporter,
        drafted: Iterable[str] = (),
    ) -> None:
        """
        Args:
            boundaries: what the drafter of every server but the first, `none`, was trained on.
            drafted: settings of which a load is there already.
        """
        self.cfg, self.commands, self.boundaries = cfg, commands, boundaries
        self.sets, self.logs, self.reporter = sets, logs, reporter
        self.drafted = {*drafted}
        """Settings of which there is a load."""
        self.failed: dict[str, ServerError] = {}
        """Those that were given up."""
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
        if name not in self._up and name not in self.failed:
            if not self.cfg.evaluate.beside:
                self._stop()
            others = [other for other in self.commands if other not in self._up and other not in self.failed]
            self._start(others if self.cfg.evaluate.beside else [name])
        if name in self.failed:
            raise self.failed[name]
        return self._up[name]

    def give_up(self, name: str, error: ServerError) -> None:
        """Goes on without a server that failed.

        Raises:
            ServerError: the given one, where nothing would be left to measure, or to compare with; where what is
                captured is wrong, which is the drafter's fault with every setting.
        """
        if name in self.failed:
            return
        left = (self.commands.keys() - self.failed.keys() - {name, NONE, UNTRAINED}) | self.drafted
        if name == NONE or not left or isinstance(error, CapturedError):
            raise error
        self.failed[name] = error
        if (server := self._up.pop(name, None)) is not None:
            server.stop()
        self.reporter.note(f"{name} is left out: {error}")

    def _start(self, names: list[str]) -> None:
        """All at a time: what takes long is one core's work for each."""
        version, began = self.commands[names[0]].sglang_version, time.monotonic()
        self.reporter.note(f"starting SGLang {version}: {', '.join(names)}; logs: {self.logs}/served-*.log")
        with ThreadPoolExecutor(len(names)) as pool:
            jobs = {pool.submit(self._start_one, name): name for name in names}
            try:
                for job in as_completed(jobs):
                    self._started(jobs[job], job)
            except BaseException:  # Ctrl-C, or one that failed: the others need not come up any more
                self._stopping.set()
                raise
        self.reporter.note(f"{len(self._up)} of {len(self.commands)} servers up in {time.monotonic() - began:.0f} s")

    def _started(self, name: str, job: Future[float]) -> None:
        try:
            seconds = job.result()
        except ServerError as error:
            self.give_up(name, self._or_one_at_a_time(error))
        else:
            self.reporter.note(f"{name}: ready and warm in {seconds:.0f} s")

    def _or_one_at_a_time(self, error: ServerError) -> ServerError:
        """Servers that are up at a time share the memory."""
        first, *log = str(error).splitlines()
        if "memory" not in first or not self.cfg.evaluate.beside or len(self.commands) == 1:
            return error
        remedy = "; or evaluate.beside=false, which has one server up at a time. Log:"
        return ServerError("\n".join([first.replace(". Log:", remedy), *log]))

    def _start_one(self, name: str) -> float:
        command, began = self.commands[name], time.monotonic()
        capture = Path(command.added_env[CAPTURE_FOLDER])
        capture.mkdir(parents=True, exist_ok=True)
        for stale in capture.glob("capture-*"):
            stale.unlink()
        log, timeout_s = self.logs / f"served-{name}.log", self.cfg.server.startup_timeout_s
        server = Server.start(command, log=log, timeout_s=timeout_s, on_wait=self._go_on)
        self._up[name] = server
        self._warm_up(name, server)
        require_captured(capture, [] if name == NONE else self.boundaries, name)
        return time.monotonic() - began

    def _warm_up(self, name: str, server: Server) -> None:
        """All prompts as many at a time as there will be; some at each other number, for which kernels are compiled
        again where they take it for a constant, as Triton's do with 1."""
        most = max(self.cfg.evaluate.concurrency)
        for temperature in self.cfg.evaluate.temperatures:
            for concurrency in dict.fromkeys((most, *self.cfg.evaluate.concurrency)):
                self._go_on()
                prompts = self.sets.prompts[: None if concurrency == most else 2 * concurrency]
                given = (prompts, self.sets.end_ids, temperature, concurrency, WARM_UP_TOKENS)
                asyncio.run(put_load(server, name, -1, *given))

    def _go_on(self, waited_s: float = 0.0) -> None:
        """Raises ServerError where another server's start has failed."""
        if self._stopping.is_set():
            raise ServerError(f"given up after {waited_s:.0f} s, with the others")


def require_captured(folder: Path, boundaries: list[int], name: str) -> None:
    """What the running target hands to its drafter must be what the drafter was trained on.

    Args:
        boundaries: [] for a server without a drafter.

    Raises:
        CapturedError: it is not, or the server does not say.
    """
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("capture-*.json"))]
    if not reports:
        raise CapturedError(f"{name}: the server did not report what it captures in {folder}; is SGLANG_PLUGINS set?")
    for report in reports:
        if "error" in report:
            raise CapturedError(f"{name}: what the server captures can't be read: {report['error']}")
        if report["boundaries"] != boundaries:
            raise CapturedError(
                f"{name}: SGLang {report['sglang_version']} captures boundaries {report['boundaries']} of "
                f"{report['model']}, and the drafter was trained on {boundaries}: what it drafts would mean nothing. "
                f"Export it for this version: eagle3 export DRAFTER --format sglang "
                f"--sglang-version {report['sglang_version']}"
            )
