"""A server that lives on without one of its processes. A fake of SGLang, whose titles the processes give themselves as
its own do (tests/e2e/test_extract.py has the real ones)."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.server.test_process import serving, until

from eagle3.errors import ServerLostError
from eagle3.server import parts
from eagle3.server.launch import Server
from eagle3.server.parts import Parts
from eagle3.server.process import ChildTree

LAUNCHER = """
import os, time
from setproctitle import setproctitle

def part(title, forks=False):
    pid = os.fork()
    if pid == 0:
        setproctitle(title)
        if forks and os.fork() == 0:  # has the title of its parent too
            time.sleep(3)
            os._exit(0)
        time.sleep(600)
    return pid

print(part("sglang::scheduler_DP0", forks=True), part("sglang::scheduler_DP1"), part("sglang::detokenizer"), flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    tree = ChildTree([sys.executable, "-c", LAUNCHER], env=os.environ, log=tmp_path / "log", grace_s=1.0)
    with Server(serving(tmp_path), tree, None) as server:
        until(
            lambda: learned(server.parts) == ["sglang::detokenizer", "sglang::scheduler_DP0", "sglang::scheduler_DP1"]
        )
        yield server


def learned(some: Parts) -> list[str]:
    some.learn()
    return some.names()


def pids(server: Server) -> list[int]:
    return [int(pid) for pid in server.tree.tail().split()]


def test_a_part_that_is_gone_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its parent has not asked how it ended."""
    monkeypatch.setattr(parts, "ALONE_S", 0.5)
    server.check()
    second = pids(server)[1]
    psutil.Process(second).kill()
    log = re.escape(str(server.tree.log))
    found = rf"(?s)runs on without process {second} \(sglang::scheduler_DP1\), which has ended.*{log}"
    with pytest.raises(ServerLostError, match=found):
        until(server.check)
    assert server.tree.poll() is None


def test_what_a_part_has_forked_may_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ALONE_S", 0.0)
    monkeypatch.setattr(parts, "LOOK_S", 0.0)
    forked = psutil.Process(pids(server)[0]).children()
    assert forked
    assert forked[0].name() == "sglang::scheduler_DP0"
    until(lambda: forked[0].status() == psutil.STATUS_ZOMBIE)
    server.check()


def test_the_whole_server_s_end_is_told_as_such(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "ALONE_S", 0.0)
    monkeypatch.setattr(parts, "LOOK_S", 0.0)
    psutil.Process(pids(server)[0]).parent().kill()  # type: ignore[union-attr]
    until(lambda: server.tree.poll() is not None)
    with pytest.raises(ServerLostError, match="was killed by SIGKILL"):
        server.check()


def test_what_nccl_refuses_is_the_reason(tmp_path: Path) -> None:
    """Not in SGLang's words, which are "invalid usage". NCCL's are as published with a bug report."""
    words = "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set"
    says = f"[2026-12-01 00:39:43] host:1:2 [0] enqueue.cc:2040 NCCL WARN {words}\nException: NCCL error: invalid usage"
    tree = ChildTree(
        [sys.executable, "-c", f"print({says!r}, flush=True); raise SystemExit(1)"],
        env=os.environ,
        log=tmp_path / "log",
        grace_s=1.0,
    )
    with Server(serving(tmp_path), tree, None) as server:
        until(lambda: tree.poll() is not None)
        with pytest.raises(ServerLostError, match=f"ended with code 1: NCCL: {re.escape(words)}. Log: "):
            server.check()
