"""Starts an SGLang server, waits until it and the dump plugin are ready, and watches it."""

import json
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from eagle3.errors import ServerError, ServerLostError
from eagle3.server.flags import ServerCommand
from eagle3.server.parts import Parts
from eagle3.server.process import ChildTree, check_port, free_port

GAVE_UP = "Received sigquit from a child process"
READY_LINE = "The server is fired up and ready to roll!"
POLL_S = 0.2
PLUGIN_S = 5.0
"""From the server's first answer to the plugin's report, which commonly comes long before."""
GRACE_S = 3.0
"""SGLang looks only every five seconds whether it was asked to end, and then kills its own children; nothing is lost by
not waiting: what is in the ledger is in the files."""


class Server:
    """A running SGLang server; leave the `with` block and nothing of it is left.

    `Server.start` returns when the server answers and, for extraction, the plugin has reported what it captures.
    """

    def __init__(self, command: ServerCommand, tree: ChildTree, work: Path | None) -> None:
        self.command = command
        self.tree = tree
        self.work = work
        self.url = f"http://{command.host}:{command.port}"
        self.parts = Parts(tree)
        self.ready: list[dict[str, Any]] = []
        """What each of the plugin's streams reported: boundaries, rank, hidden_size, versions."""

    @classmethod
    def start(
        cls,
        command: ServerCommand,
        *,
        log: Path,
        timeout_s: float,
        work: Path | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> Self:
        """
        Args:
            work: the dataset's `work/` folder, for extraction: the plugin must report there.
            on_wait: called with the seconds waited so far; what it raises (Ctrl-C) stops the server.

        Raises:
            ServerError: port taken, model missing, server died or did not come up in time, plugin absent or refusing.
        """
        _check_model(command)
        if command.port == 0:
            command = command.at_port(free_port(command.host))
        else:
            check_port(command.host, command.port)
        if work is not None:
            for stale in (*work.glob("ready-*.json"), *work.glob("status-*.json"), *work.glob("reserve-*")):
                stale.unlink(missing_ok=True)
        tree = ChildTree(command.argv, env=command.environment(), log=log, grace_s=GRACE_S)
        server = cls(command, tree, work)
        try:
            server._wait(timeout_s, on_wait)
            server._freeze()
        except BaseException:
            tree.stop()
            raise
        return server

    def _wait(self, timeout_s: float, on_wait: Callable[[float], None] | None) -> None:
        began = time.monotonic()
        answered: float | None = None
        while True:
            self.check()
            self.parts.learn()
            answers = self._answers()
            self._read_ready()
            waited = time.monotonic() - began
            if answers:
                if self.work is None or (self.ready and len(self.ready) >= self.ready[0]["streams"]):
                    return
                answered = waited if answered is None else answered
                if waited - answered > PLUGIN_S:
                    raise ServerError(
                        self._story(
                            f"the server runs, but the dump plugin did not report ready in {self.work}: "
                            "is another plugin, or another eagle3_hs_dump on PYTHONPATH, in the way?"
                        )
                    )
            if waited > timeout_s:
                raise ServerError(self._story(f"the server was not ready after {timeout_s:.0f} s"))
            if on_wait is not None:
                on_wait(waited)
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        quiet = "log_level" in self.command.flags
        if not quiet and not self.tree.wrote(READY_LINE):
            return False
        try:
            return httpx.get(f"{self.url}/model_info", timeout=5.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def _freeze(self) -> None:
        """Has SGLang leave what it has loaded out of Python's garbage collection: a million objects, which it would go
        through every 3,000 requests, for half a second each time in which nothing is prefilled. After its own warm-up
        it does this itself, but an extraction's server has none.
        """
        with suppress(httpx.HTTPError):  # slower, not wrong
            httpx.post(f"{self.url}/freeze_gc", timeout=30.0)

    def _read_ready(self) -> None:
        if self.work is None:
            return
        self.ready = []
        for path in sorted(self.work.glob("ready-*.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            if "error" in content:
                raise ServerError(f"the dump plugin refuses: {content['error']}")
            self.ready.append(content)

    def check(self) -> None:
        """Raises ServerLostError when the server has died, or one of its processes has, for which it would wait."""
        code = self.tree.poll()
        if code is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            if code == -signal.SIGKILL and self.tree.wrote(GAVE_UP):
                how = "ended itself after one of its processes had failed"
            raise ServerLostError(self._story(f"the server {how}"))
        if lost := self.parts.lost():
            raise ServerLostError(
                self._story(
                    f"the server runs on without {lost}, which has ended; what ends one alone is most often the "
                    "kernel, out of memory"
                )
            )

    def dump_status(self) -> dict[str, Any]:
        """The plugin's figures, summed over its streams; `error` is the first one or None."""
        total: dict[str, Any] = {"error": None}
        if self.work is None:
            return total
        for path in sorted(self.work.glob("status-*.json")):
            for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                if name == "error":
                    total["error"] = total["error"] or value
                elif name not in ("pid", "time"):
                    total[name] = total.get(name, 0) + value
        return total

    def stop(self) -> None:
        self.tree.stop()

    def _story(self, what: str) -> str:
        lines = [
            line for line in self.tree.tail(400).splitlines() if "server_args=" not in line and "Warning: " not in line
        ]
        reason = next((hint for sign, hint in _SIGNS if any(sign in line for line in lines)), None)
        refused = [found[1] for line in lines if (found := _NCCL_SAYS.search(line))]
        reason = reason or (f"NCCL: {refused[-1]}" if refused else None)
        last = "\n".join(f"    {line[:300]}" for line in lines[-15:])
        return f"{what}{f': {reason}' if reason else ''}. Log: {self.tree.log}\n{last}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


_NCCL_SAYS = re.compile(r"NCCL WARN (.*)")
"""SGLang's own words for what NCCL refuses are "invalid usage", and advice on memory."""
_SIGNS = (
    ("address already in use", "its port is taken; server.port=0 takes a free one"),
    ("out of memory", "out of GPU memory; lower server.flags.common.mem_fraction_static or raise server.tp"),
    ("Not enough memory", "not enough memory for its cache; raise server.flags.common.mem_fraction_static"),
    ("Raise --mem-fraction-static", "no memory is left for its cache; raise server.flags.common.mem_fraction_static"),
    ("No space left on device", "a disk is full"),
    ("unrecognized arguments", "it does not take one of its flags"),
    # With its quotes: the server's own dump of its arguments names the flag too.
    ("`trust_remote_code=True`", "the model brings its own code; target.trust_remote_code=true allows it"),
)


def _check_model(command: ServerCommand) -> None:
    model = Path(str(command.flags["model_path"]))
    if not (model / "config.json").is_file():
        raise ServerError(f"no model in {model}: config.json is missing; check target.path")
