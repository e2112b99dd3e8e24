"""Several servers, with small programs in the place of SGLang: what fails, what is left, and what is said of it."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from eagle3.config.schema import Config, DatasetConfig, DraftSetting, EvaluateConfig, ServerConfig, TargetConfig
from eagle3.errors import ServerError
from eagle3.evaluation.figures import NONE, UNTRAINED
from eagle3.evaluation.prompts import PromptSets
from eagle3.evaluation.recorded import Wanted, plan_of
from eagle3.evaluation.served import measure
from eagle3.evaluation.servers import CapturedError, Servers
from eagle3.metrics import JsonlReporter
from eagle3.server.flags import CAPTURE_FOLDER, ServerCommand

WAITS = "import time; time.sleep(600)"
FAILS = "import time; time.sleep(1); print('no such drafter'); raise SystemExit(3)"
SHORT = "print('RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.'); raise SystemExit(1)"
SETTING, OTHER, LAST = "s3k1d4", "s5k1d6", "s7k1d8"
ASKED = EvaluateConfig(
    kind="served",
    drafts=[DraftSetting(), DraftSetting(5, 1, 6), DraftSetting(7, 1, 8)],
    concurrency=[1, 4],
    temperatures=[0.0],
    rounds=2,
)


def serves(captured: list[int] | None = None, posts: int = 1000) -> str:
    """Answers everything with nothing, and ends at so many requests; no prompts are sent.

    Args:
        captured: what it reports, as the plugin does.
    """
    report = json.dumps({"boundaries": captured or [], "model": "Tiny", "sglang_version": "0.5.23"})
    return f"""
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
posts = 0
class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        global posts
        posts += self.path == "/flush_cache"
        if posts > {posts}:
            print("CUDA error: an illegal memory access", flush=True)
            os._exit(7)
        self.do_GET()
    def log_message(self, *_): pass
open(os.path.join(os.environ["{CAPTURE_FOLDER}"], "capture-1.json"), "w").write('{report}')
print("The server is fired up and ready to roll!", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answers).serve_forever()
"""


def servers(folder: Path, programs: dict[str, str], beside: bool = True) -> Servers:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    flags = {"model_path": str(folder / "model")}
    commands = {
        name: ServerCommand(
            "serving",
            (sys.executable, "-c", program, "--port", "0"),
            {CAPTURE_FOLDER: str(folder / "capture" / name)},
            "127.0.0.1",
            0,
            "0.5.23",
            flags,
        )
        for name, program in programs.items()
    }
    cfg = Config(
        name="t",
        target=TargetConfig("t", flags["model_path"]),
        dataset=DatasetConfig("d", "d.jsonl"),
        server=ServerConfig(device="cpu"),
        evaluate=EvaluateConfig(kind="served", beside=beside, rounds=2, concurrency=[1, 4], temperatures=[0.0]),
    )
    return Servers(cfg, commands, [2], PromptSets([], [], 0), folder / "logs", JsonlReporter(folder / "said.jsonl"))


def measured(some: Servers, folder: Path) -> list[Wanted]:
    """All of `ASKED`."""
    with some.running():
        loads = measure(some.cfg, some, some.sets, plan_of(ASKED), [], folder, some.reporter)
    assert not [child for child in psutil.Process().children(recursive=True) if "serve_forever" in str(child.cmdline())]
    return [Wanted.of(load) for load in loads]


def test_the_only_one_that_fails_is_named_at_once_and_none_is_left(tmp_path: Path) -> None:
    """Not after the others are up, which takes minutes."""
    both, began = servers(tmp_path, {NONE: WAITS, SETTING: FAILS}), time.monotonic()
    with (
        both.running(),
        pytest.raises(ServerError, match=r"(?s)ended with code 3.*s3k1d4\.log.*no such drafter"),
    ):
        both.use(NONE)
    assert time.monotonic() - began < 60
    assert not [child for child in psutil.Process().children(recursive=True) if WAITS in " ".join(child.cmdline())]


@pytest.mark.parametrize("beside", [True, False])
def test_settings_that_fail_leave_the_others_figures(tmp_path: Path, beside: bool) -> None:
    """One does not start, one dies in its second load (or, started anew each time, at the second of its first)."""
    warm_up = 2  # 4 at a time, and 1
    programs = {NONE: serves(), SETTING: serves([2]), OTHER: FAILS, LAST: serves([2], posts=warm_up + 1)}
    some = servers(tmp_path, {**programs, UNTRAINED: serves([2])}, beside)
    found = measured(some, tmp_path)
    assert found == [
        wanted
        for wanted in plan_of(ASKED)
        if wanted.server in (NONE, SETTING, UNTRAINED) or wanted == Wanted(0, LAST, 0.0, 1)
    ]
    assert list(some.failed) == [OTHER, LAST]
    assert "no such drafter" in str(some.failed[OTHER])
    assert "illegal memory access" in str(some.failed[LAST])
    rows = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    notes = [row["note"] for row in rows if "note" in row]
    assert len([note for note in notes if note.startswith((f"{OTHER} is left out", f"{LAST} is left out"))]) == 2
    done, total = [(row["progress"]["done"], row["progress"]["total"]) for row in rows if "progress" in row][-1]
    assert done == total == len(found)


def test_nothing_is_left_to_compare(tmp_path: Path) -> None:
    some = servers(tmp_path, {NONE: serves(), SETTING: FAILS, OTHER: FAILS, UNTRAINED: serves([2])})
    with some.running(), pytest.raises(ServerError, match="no such drafter"):
        measure(some.cfg, some, some.sets, plan_of(ASKED), [], tmp_path, some.reporter)


def test_without_its_measure_of_none_nothing_is_worth_it(tmp_path: Path) -> None:
    some = servers(tmp_path, {NONE: SHORT, SETTING: serves([2]), OTHER: serves([2])})
    one_at_a_time = r"not enough memory.*; or evaluate\.beside=false, which has one server up at a time\. Log:"
    with some.running(), pytest.raises(ServerError, match=one_at_a_time):
        some.use(NONE)


def test_other_boundaries_stop_all(tmp_path: Path) -> None:
    """They would look like a bad drafter, with every setting."""
    some = servers(tmp_path, {NONE: serves(), SETTING: serves([2]), OTHER: serves([3])})
    with some.running(), pytest.raises(CapturedError, match=r"captures boundaries \[3\]"):
        some.use(NONE)
