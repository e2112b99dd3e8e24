"""Starting several servers at a time, with small programs in the place of SGLang: what fails, and what is left."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from eagle3.config.schema import Config, DatasetConfig, EvaluateConfig, ServerConfig, TargetConfig
from eagle3.errors import ServerError
from eagle3.evaluation.figures import NONE
from eagle3.evaluation.prompts import PromptSets
from eagle3.evaluation.servers import Servers
from eagle3.metrics import JsonlReporter
from eagle3.server.flags import CAPTURE_FOLDER, ServerCommand

WAITS = "import time; time.sleep(600)"
FAILS = "import time; time.sleep(1); print('no such drafter'); raise SystemExit(3)"


def servers(folder: Path, programs: dict[str, str]) -> Servers:
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
        evaluate=EvaluateConfig(kind="served", beside=True),
    )
    return Servers(cfg, commands, [2], PromptSets([], [], 0), folder / "logs", JsonlReporter(folder / "said.jsonl"))


def test_one_that_fails_is_named_at_once_and_none_is_left(tmp_path: Path) -> None:
    """Not after the others are up, which takes minutes."""
    both, began = servers(tmp_path, {NONE: WAITS, "s3k1d4": FAILS}), time.monotonic()
    with (
        both.running(),
        pytest.raises(ServerError, match=r"(?s)ended with code 3.*s3k1d4\.log.*no such drafter"),
    ):
        both.use(NONE)
    assert time.monotonic() - began < 60
    assert not [child for child in psutil.Process().children(recursive=True) if WAITS in " ".join(child.cmdline())]
