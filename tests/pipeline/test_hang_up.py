"""A terminal that is closed stops a sweep as Ctrl-C does: in order, with its table."""

import errno
import importlib
import json
import os
import pty
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import leftovers, overrides

from eagle3.config import PROJECT


def test_a_closed_terminal_stops_the_sweep_in_order(tmp_path: Path) -> None:
    write_chat_model(tmp_path / "model")
    write_conversations(tmp_path / "chat.jsonl", 20)
    given = [*overrides(tmp_path), "until=prepare", "tracking=disabled", "dataset.seed=0,1"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(PROJECT / "run.py"), "-m", *given])
    runs = tmp_path / "runs" / "tiny"
    while not list(runs.glob("sweep_*/*/job.json")):
        assert os.waitpid(pid, os.WNOHANG)[0] == 0
        time.sleep(0.05)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    (sweep,) = runs.iterdir()
    assert json.loads((sweep / "0" / "job.json").read_text())["status"] == "interrupted"
    assert "interrupted" in (sweep / "sweep.md").read_text()
    assert not leftovers(tmp_path)


def test_what_is_printed_to_it_before_its_signal_stops_too(monkeypatch: pytest.MonkeyPatch) -> None:
    main = importlib.import_module("eagle3.pipeline.main")  # the package's `main` is its function
    read, terminal = os.pipe()
    monkeypatch.setattr(main, "_terminals", [terminal])

    def job() -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert main._guarded(job) == 130
    os.write(terminal, b"goes nowhere")
    os.close(terminal)
    assert os.read(read, 1) == b""
    os.close(read)
    monkeypatch.setattr(main, "_terminals", [])
    assert main._guarded(job) == 1, "a disk's fault"
