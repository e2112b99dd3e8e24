"""Process trees with real processes: nothing outlives its owner."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from eagle3.config.schema import Config, DatasetConfig, ServerConfig, TargetConfig
from eagle3.errors import ServerError
from eagle3.server.flags import server_command
from eagle3.server.launch import Server
from eagle3.server.process import PORTS, SYSTEM_PORTS, ChildTree, check_port, free_port

FAMILY = """
import os, signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
start = ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]
orphan = subprocess.run(start, capture_output=True, text=True).stdout.strip()
print(os.getpid(), grandchild.pid, orphan, flush=True)
{then}
"""
SLEEP = "time.sleep(600)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def start(folder: Path, then: str, grace_s: float = 10.0) -> ChildTree:
    argv = [sys.executable, "-c", FAMILY.format(then=then)]
    return ChildTree(argv, env=os.environ, log=folder / "child.log", grace_s=grace_s)


def family(log: Path) -> list[psutil.Process]:
    """Child, grandchild in a session of its own, and an orphan."""
    until(lambda: log.exists() and b"\n" in log.read_bytes())
    return [psutil.Process(int(pid)) for pid in log.read_text().splitlines()[0].split()]


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.02)


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.parametrize(("then", "code"), [(SLEEP, -signal.SIGTERM), (STUBBORN, -signal.SIGKILL)])
def test_stop_ends_the_whole_tree(tmp_path, then, code):
    tree = start(tmp_path, then, grace_s=1.0)
    members = family(tree.log)
    until(lambda: then is not STUBBORN or tree.wrote("deaf"))
    assert tree.stop() == code
    until(lambda: gone(members))


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_the_child_leaves_behind_ends_with_it(tmp_path, ending):
    tree = start(tmp_path, ending)
    members = family(tree.log)
    assert tree.wait(60) == (3 if "exit" in ending else -signal.SIGKILL)
    until(lambda: gone(members))


def test_a_tree_does_not_outlive_a_killed_owner(tmp_path):
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from pathlib import Path; from tests.server.test_process import start, SLEEP; "
            f"start(Path({str(tmp_path)!r}), SLEEP); time.sleep(600)",
        ],
        cwd=Path(__file__).resolve().parents[2],
    )
    members = family(tmp_path / "child.log")
    owner.kill()
    owner.wait()
    until(lambda: gone(members))


def test_a_tree_outlives_the_thread_that_started_it(tmp_path):
    """The parent-death signal would fire here."""
    from threading import Thread

    made: list[ChildTree] = []
    thread = Thread(target=lambda: made.append(start(tmp_path, SLEEP)))
    thread.start()
    thread.join()
    members = family(made[0].log)
    time.sleep(0.5)
    assert not gone(members)
    made[0].stop()


def test_leaving_the_block_stops_it(tmp_path):
    with contextlib.suppress(ZeroDivisionError), start(tmp_path, SLEEP) as tree:
        members = family(tree.log)
        raise ZeroDivisionError
    assert gone(members)


def test_a_signal_right_after_the_start_leaves_nothing_behind(tmp_path):
    """Ctrl-C while Popen is at work: nobody has the tree in a `with` yet."""
    program = f"""
import os, signal, subprocess
from pathlib import Path
from tests.server.test_process import SLEEP, family, start
real = subprocess.Popen
def interrupted(*args, **kwargs):
    process = real(*args, **kwargs)
    family(Path({str(tmp_path)!r}) / "child.log")
    os.kill(os.getpid(), signal.SIGINT)
    return process
subprocess.Popen = interrupted
try:
    start(Path({str(tmp_path)!r}), SLEEP)
except KeyboardInterrupt:
    print("interrupted")
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "interrupted\n"
    pids = (tmp_path / "child.log").read_text().splitlines()[0].split()
    assert not any(psutil.pid_exists(int(pid)) for pid in pids), "it was stopped before its owner ended"


def test_only_this_child_s_lines_count(tmp_path):
    (tmp_path / "child.log").write_text("an earlier run\n")
    tree = start(tmp_path, "sys.exit(0)")
    assert tree.wait(60) == 0
    assert not tree.wrote("an earlier run")
    assert "an earlier run" not in tree.tail()


def test_a_command_that_is_not_there_ends_as_one(tmp_path):
    tree = ChildTree(["/no/such/command"], env=os.environ, log=tmp_path / "log")
    assert tree.wait(60) not in (0, None)
    assert "No such file" in tree.tail()


def test_a_taken_port_is_named():

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"server\.port={port}"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", free_port("127.0.0.1"))


def serving(model: Path, **server):
    cfg = Config(
        name="test",
        target=TargetConfig(name="t", path=str(model)),
        dataset=DatasetConfig(name="d", path="d"),
        server=ServerConfig(device="cpu", **server),
    )
    return server_command(cfg, "serving", model)


def test_a_missing_model_is_told_before_anything_starts(tmp_path):
    with pytest.raises(ServerError, match=r"config\.json"):
        Server.start(serving(tmp_path / "nothing"), log=tmp_path / "log", timeout_s=60)
    assert not (tmp_path / "log").exists()


@pytest.mark.e2e
def test_a_server_that_dies_tells_its_last_lines(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    with pytest.raises(ServerError, match=r"the server (ended with code|was killed by)[\s\S]*server\.log"):
        Server.start(serving(tmp_path), log=tmp_path / "server.log", timeout_s=600)


def test_a_free_port_is_none_that_the_system_gives_to_a_connection_before_the_server_listens():
    lowest = int(SYSTEM_PORTS.read_text().split()[0])
    ports = [free_port("127.0.0.1") for _ in range(200)]
    assert all(1024 < port < lowest for port in ports)
    assert max(ports) + 10_000 <= 65535, "SGLang derives other ports from it"
    assert len(set(ports)) > 150, "two servers that start at once seldom draw the same"


@pytest.mark.parametrize("said", ["1024 60999", "", "much"])
def test_where_the_system_gives_nearly_all_ports_or_does_not_say(tmp_path, monkeypatch, said):
    (tmp_path / "range").write_text(said)
    monkeypatch.setattr("eagle3.server.process.SYSTEM_PORTS", tmp_path / "range")
    assert PORTS[0] <= free_port("127.0.0.1") < PORTS[1]


def test_a_taken_port_is_not_drawn(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port("127.0.0.1")))
        port = taken.getsockname()[1]
        monkeypatch.setattr("eagle3.server.process.PORTS", (port, port + 1))
        monkeypatch.setattr("eagle3.server.process.SYSTEM_PORTS", Path("/nothing"))
        with pytest.raises(ServerError, match="no free port was found"):
            free_port("127.0.0.1")


def test_a_host_that_is_not_this_machine():
    with pytest.raises(ServerError, match=r"server\.host=192\.0\.2\.1: .*127\.0\.0\.1 is this machine"):
        free_port("192.0.2.1")
