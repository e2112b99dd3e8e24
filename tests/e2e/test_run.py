"""The whole way by the command a user types: run.py, the real server, the real trainer, on a tiny random chat model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from tests.e2e.chat_model import write_chat_model, write_conversations

from eagle3.config import PROJECT
from eagle3.data.shards import HiddenStates

pytestmark = pytest.mark.e2e
STAGES = ("prepare", "extract", "train", "evaluate")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_chat_model(folder / "model")
    write_conversations(folder / "chat.jsonl")
    return folder


def overrides(place: Path, artifacts: str = "artifacts") -> list[str]:
    return [
        "name=tiny",
        "target=local",
        "target.name=tiny",
        f"target.path={place / 'model'}",
        "dataset=jsonl",
        f"dataset.path={place / 'chat.jsonl'}",
        "dataset.max_length=256",
        "server=cpu",
        "server.concurrency=4",
        "trainer=cpu",
        "trainer.epochs=2",
        "trainer.tokens_per_batch=512",
        "layers.boundaries=[1,3,5]",
        "drafter.draft_vocab_size=128",
        "loss.ttt_steps=3",
        "optim.lr=1e-3",
        f"paths.artifacts={place / artifacts}",
        f"paths.runs={place / 'runs'}",
    ]


def start(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(PROJECT / "run.py"), *arguments]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(arguments: list[str], cwd: Path) -> tuple[int, str]:
    process = start(arguments, cwd)
    output, _ = process.communicate(timeout=500)
    return process.returncode, output


def runs(place: Path) -> list[Path]:
    return sorted((place / "runs" / "tiny").iterdir())


def leftovers(mark: Path) -> list[str]:
    """Processes that still mention this test's folder; one that is being ended by its warden is waited for."""
    deadline = time.monotonic() + 30
    while (found := _mentioning(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _mentioning(mark: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(mark) in line and process.pid != os.getpid():
            found.append(line)
    return found


def test_everything_then_reuse_then_replay(place: Path, tmp_path: Path) -> None:
    code, output = run(overrides(place), tmp_path)
    assert code == 0, output
    first = runs(place)[-1]
    for name in (
        "config.yaml",
        "snapshot/replay.yaml",
        "provenance.json",
        "report/summary.json",
        "report/report.md",
        "DONE",
    ):
        assert (first / name).is_file(), name
    assert {p.name for p in (first / "drafter").iterdir()} >= {"config.json", "model.safetensors"}
    assert list((first / "report").glob("*.png"))
    assert str(first) in output.replace("\n", "")
    assert not list(tmp_path.iterdir()), "nothing lands in the folder that the command was typed in"
    assert not leftovers(place)
    provenance = json.loads((first / "provenance.json").read_text())
    assert provenance["target"]["source"] == "local"
    assert provenance["plugin_sha256"]

    code, output = run(overrides(place), tmp_path)
    assert code == 0, output
    assert [stage for stage in STAGES if f"{stage}: reused" in output] == list(STAGES)
    assert (runs(place)[-1] / "DONE").is_file()

    code, output = run(["--config-dir", str(first), "snapshot=replay"], tmp_path)
    assert code == 0, output
    assert (runs(place)[-1] / "config.yaml").read_bytes() == (first / "config.yaml").read_bytes()
    assert len(runs(place)) == 3


def test_a_damaged_dataset_is_named_and_mended_by_the_same_command(place: Path, tmp_path: Path) -> None:
    """The one that the test above made: one bit flips, one sequence is extracted again."""
    (folder,) = (place / "artifacts" / "extract").glob("*/*/")
    data = HiddenStates(folder)
    before = [data.read(i, ["final"])["final"].clone() for i in range(len(data))]
    shard, sample = data.manifest.shards[0], int(data.sample_ids[3])
    at = data.layouts[0].rows("final", int(data.lengths[:3].sum()), 1)[0]
    with (folder / shard.file).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    verify = [sys.executable, "-m", "eagle3.cli", "verify", str(folder)]
    told = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert f"{shard.file}, sequence {sample}, final: " in told.stdout

    code, output = run(overrides(place), tmp_path)
    assert code == 0, output
    assert f"1 of its {len(data)} sequences are extracted again ({sample})" in output
    assert [stage for stage in STAGES if f"{stage}: reused" in output] == ["prepare", "train", "evaluate"]
    subprocess.run(verify, check=True)
    after = HiddenStates(folder)
    assert after.sample_ids.tolist() == data.sample_ids.tolist()
    assert all(torch.equal(after.read(i, ["final"])["final"], rows) for i, rows in enumerate(before) if i != 3)
    assert torch.allclose(after.read(3, ["final"])["final"].float(), before[3].float(), atol=0.2)


@pytest.mark.parametrize(
    ("stage", "number"),
    [("extract", signal.SIGINT), ("train", signal.SIGTERM), ("evaluate", signal.SIGINT)],
    ids=["ctrl-c-extract", "sigterm-train", "ctrl-c-evaluate"],
)
def test_stopped_in_a_stage_the_same_command_continues(
    place: Path, tmp_path: Path, stage: str, number: signal.Signals
) -> None:
    """One artifacts folder for all three: each continues what the one before left."""
    arguments = [*overrides(place, "interrupted"), "trainer.epochs=30"]
    root = place / "interrupted" / stage
    process = start(arguments, tmp_path)
    began = {"extract": "work/status-*.json", "train": "metrics.jsonl", "evaluate": "job.json"}[stage]
    deadline = time.monotonic() + 300
    while not list(root.glob(f"*/{began}")) + list(root.glob(f"*/*/{began}")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "the same command continues" in output
    assert not leftovers(place)
    assert not (runs(place)[-1] / "DONE").exists()
    if stage == "evaluate":
        code, output = run(arguments, tmp_path)
        assert code == 0, output
        assert "train: reused" in output


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (["target.path=/nowhere/at/all"], 2, "target.path"),
        (["dataset.path=missing.jsonl"], 2, "dataset.path"),
        (["optim.lrr=1"], 2, "did you mean optim.lr?"),
        (["layers.boundaries=[1,9]"], 2, "layers.boundaries: [9]"),
        (["+target.shape={hidden_size: 64}"], 2, "target.shape"),
        (["server.flags.common.no_such_flag=true"], 2, "to add it, write +server.flags.common.no_such_flag"),
        (["server=cuda"], 2, "server.device=cuda: torch finds no GPU"),
        (["paths.runs=/proc/version"], 1, "paths.runs"),
    ],
)
def test_what_is_wrong_is_said_before_a_server_starts(
    place: Path, tmp_path: Path, change: list[str], code: int, says: str
) -> None:
    given, output = run([*overrides(place, "wrong"), *change], tmp_path)
    assert given == code, output
    assert says in output
    assert "Traceback" not in output
    assert not list((place / "wrong").glob("extract/*/*/work"))
