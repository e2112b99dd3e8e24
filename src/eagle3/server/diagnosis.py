"""What a server that no longer moves is doing: looked at before it is stopped, and the reason is lost with it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from eagle3.server.launch import Server

LOOK_S = 0.5
BUSY = 0.5
"""Share of one core from which on a process counts as computing."""


@dataclass(frozen=True)
class Look:
    """One process of the server, seen over half a second."""

    pid: int
    name: str
    status: str
    """As ps tells it: running, sleeping, stopped, disk-sleep, zombie."""
    cores: float
    """CPU time a second."""
    waits_in: str
    """The kernel's function that it sleeps in; empty when it runs, or may not be asked."""

    def __str__(self) -> str:
        where = f" in {self.waits_in}" if self.waits_in else ""
        return f"process {self.pid}, {self.name}: {self.status}{where}, {self.cores:.0%} of a core"


def diagnose(server: Server) -> list[str]:
    """Lines for a person: first what most likely holds the server up, then what was seen. Takes a few seconds."""
    looks = _look(server.tree.members())
    figures = server.dump_status()
    lines = [_verdict(looks, figures), *(str(look) for look in looks)]
    if server.work is not None:
        shown = ("queue_depth", "buffers_in_use", "buffers", "stalls", "sequences", "bytes")
        known = ", ".join(f"{name} {figures[name]}" for name in shown if name in figures)
        lines.append(f"dump plugin, {_age(server.work)}: {known or 'no figures'}")
    lines.append(f"HTTP: {_http(server.url)}")
    lines.append(f"last line of {server.tree.log}: {server.tree.tail(1)!r}")
    return lines


def _look(members: list[psutil.Process]) -> list[Look]:
    before: dict[int, float] = {}
    for process in members:
        with suppress(psutil.Error):
            before[process.pid] = sum(process.cpu_times()[:2])
    time.sleep(LOOK_S)
    looks = []
    for process in members:
        with suppress(psutil.Error, KeyError):
            cores = (sum(process.cpu_times()[:2]) - before[process.pid]) / LOOK_S
            name = " ".join(" ".join(process.cmdline()).split())[:60] or process.name()  # a set title leaves blanks
            looks.append(Look(process.pid, name, process.status(), cores, _waits_in(process.pid)))
    return looks


def _waits_in(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    return ""


def _verdict(looks: list[Look], figures: dict[str, Any]) -> str:
    for look in looks:
        if look.status == psutil.STATUS_STOPPED:
            return f"process {look.pid} ({look.name}) was stopped by a signal (SIGSTOP)"
    if figures.get("queue_depth"):
        return f"{figures['queue_depth']} blocks wait to be written: the dataset's disk is slow, or gone"
    for look in looks:
        if look.status == psutil.STATUS_DISK_SLEEP:
            return f"process {look.pid} ({look.name}) waits for a disk or a driver"
    busy = [look for look in looks if look.cores > BUSY]
    if busy:
        return f"process {busy[0].pid} ({busy[0].name}) computes without end; on GPUs a hanging collective looks so"
    return "all of its processes sleep"


def _age(work: Path) -> str:
    times = [path.stat().st_mtime for path in work.glob("status-*.json")]
    return f"as of {time.time() - min(times):.0f} s ago" if times else "which has told nothing"


def _http(url: str) -> str:
    try:
        return f"answers with {httpx.get(f'{url}/model_info', timeout=2.0).status_code}"
    except httpx.HTTPError as error:
        return f"does not answer ({type(error).__name__})"
