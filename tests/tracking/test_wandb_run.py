"""A real offline W&B run, read back from its file; and W&B failing in every way without stopping the work."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.tracking.artifact_samples import write_dataset, write_drafter

from eagle3.config.schema import Config, DatasetConfig, TargetConfig, TrackingConfig
from eagle3.errors import ConfigError, DataError, Interrupted
from eagle3.tracking import run as tracking
from eagle3.tracking.login import find_login
from eagle3.tracking.offline import find_runs, read_offline

CHOICES = {"target": "smollm2", "nccl@nccl.extraction": "ring_ll", "debug": None, "hydra/launcher": "basic"}
PROVENANCE = {"git": {"commit": "0123abcd", "dirty": True, "diff": "+ a line"}, "versions": {"sglang": "0.5.23"}}


@pytest.fixture
def cfg() -> Config:
    target = TargetConfig(name="smollm2", path="HuggingFaceTB/SmolLM2-135M-Instruct")
    return Config(
        name="quick",
        target=target,
        dataset=DatasetConfig(name="d", path="d.jsonl"),
        tracking=TrackingConfig(tags=["a"]),
    )


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a login, where a stray file would be seen."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith(("WANDB_", "XDG_", "NETRC"))]:
        monkeypatch.delenv(name)


def services() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "wandb-core" in child.name()]


def test_everything_is_in_the_file(cfg: Config, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "now"
    write_dataset(tmp_path / "dataset")
    write_drafter(tmp_path / "drafter")
    plots = tmp_path / "plots"
    plots.mkdir()
    (plots / "loss.png").write_bytes(_png())
    before = dict(os.environ)

    with tracking.open_run(cfg, run_dir, CHOICES, PROVENANCE, warn=pytest.fail) as tracked:
        folder = tracked.folder
        tracked.log({"extract/tokens": 512, "extract/tokens_per_s": 400.0}, step=4)
        for step in range(3):
            tracked.log({"train/loss": 3.0 - step, "val/accept_length": 1.0 + step}, step=step)
        tracked.config({"provenance": {**PROVENANCE, "boundaries": [2, 15, 27]}})
        tracked.summary({"eval/accept_length": 1.75, **{f"eval/further_{i}": i for i in range(100)}})
        tracked.plots(plots)
        tracked.dataset(tmp_path / "dataset")
        tracked.drafter(tmp_path / "drafter", {"note": "best"})

    assert folder is not None
    assert folder.is_relative_to(run_dir / "wandb")
    run = read_offline(folder)
    assert (run.group, run.job_type, run.name, run.project) == ("quick", "evaluate", "quick/now", "eagle3")
    assert run.tags == ["target=smollm2", "nccl.extraction=ring_ll", "a"]
    assert run.git_commit == "0123abcd"
    assert run.exit_code == 0
    assert run.config["loss"]["ttt_steps"] == cfg.loss.ttt_steps
    assert run.config["choices"]["target"] == "smollm2"
    assert run.config["provenance"]["git"] == {"commit": "0123abcd", "dirty": True}
    assert run.config["provenance"]["boundaries"] == [2, 15, 27]
    assert run.series("train/loss") == [3.0, 2.0, 1.0]
    assert run.series("train/step") == [0, 1, 2]
    assert run.series("extract/sequences") == [4]
    assert run.axes["train/*"] == run.axes["val/*"] == "train/step"
    assert run.summary["eval/accept_length"] == 1.75
    assert run.summary["train/loss"] == 1.0
    assert run.series("plots/loss")[0]["_type"] == "image-file"
    assert run.system, "no system figures"
    dataset, drafter = run.artifacts
    assert (dataset.type, list(dataset.files)) == ("dataset", ["manifest.json"])
    assert dataset.metadata["tokens"] == 70
    assert drafter.type == "model"
    assert (drafter.metadata["figures"]["eval/accept_length"], drafter.metadata["note"]) == (1.75, "best")
    assert set(drafter.files) == {"config.json", "model.safetensors"}
    assert all(path.is_relative_to(tmp_path / "drafter") for path in drafter.files.values())

    assert not list((tmp_path / "home").rglob("*")), "W&B wrote outside the run folder"
    assert dict(os.environ) == before
    assert not services()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("x"), 1),
        (ConfigError("x"), 2),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (ValueError("x"), 1),
    ],
)
def test_finished_on_every_way_out(cfg: Config, tmp_path: Path, error: BaseException, code: int) -> None:
    with pytest.raises(type(error)), tracking.open_run(cfg, tmp_path / "run", {}, {}):
        raise error
    assert read_offline(tmp_path / "run").exit_code == code
    assert not services()


def test_two_runs_in_one_process_are_two_runs(cfg: Config, tmp_path: Path) -> None:
    for name in ("first", "second"):
        with tracking.open_run(cfg, tmp_path / name, {}, {}) as tracked:
            tracked.log({"train/loss": 1.0}, step=0)
    first, second = read_offline(tmp_path / "first"), read_offline(tmp_path / "second")
    assert first.run_id != second.run_id
    assert len(first.history) == len(second.history) == 1


def test_the_shell_does_not_decide(cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is what a snapshot repeats, so variables of the shell must not change what is tracked."""
    for name, value in {
        "MODE": "disabled",
        "RUN_ID": "shared",
        "PROJECT": "other",
        "DIR": "/nowhere",
        "TAGS": "x",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=pytest.fail) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
    run = read_offline(tmp_path / "run")
    assert (run.project, run.tags, run.series("train/loss")) == ("eagle3", ["a"], [1.0])
    assert run.run_id != "shared"


def test_quiet(cfg: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_drafter(tmp_path / "drafter")
    with tracking.open_run(cfg, tmp_path / "run", {}, {}) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
        tracked.drafter(tmp_path / "drafter")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("machine", ["api.wandb.ai", "api.forge.coreweave.com", "wandb.example.org:8080", "other.org"])
def test_a_login_in_netrc(tmp_path: Path, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home" / ".netrc").write_text(f"machine {machine}\n  login user\n  password {'0' * 40}\n")
    if machine.startswith("wandb.example"):
        assert find_login() is None
        monkeypatch.setenv("WANDB_BASE_URL", f"http://{machine}")
    assert find_login() == (None if machine == "other.org" else str(tmp_path / "home" / ".netrc"))


def test_online_without_a_login_fails_before_anything_starts(cfg: Config, tmp_path: Path) -> None:
    cfg.tracking.mode = "online"
    with pytest.raises(ConfigError, match="wandb login"), tracking.open_run(cfg, tmp_path / "run", {}, {}):
        pytest.fail("went on")
    assert not (tmp_path / "run").exists()


def test_a_login_that_is_none(cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg.tracking.mode = "online"
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    with pytest.raises(ConfigError, match="refuses the login"), tracking.open_run(cfg, tmp_path / "run", {}, {}):
        pytest.fail("went on")


def test_no_network_falls_back_to_offline(cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg.tracking.mode = "online"
    monkeypatch.setattr(tracking, "_INIT_TIMEOUT_S", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens on the discard port
    said: list[str] = []
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=said.append) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
    assert len(said) == 1
    assert "can't be reached" in said[0]
    assert "127.0.0.1:9" in said[0]
    assert len(find_runs(tmp_path / "run")) == 1
    assert read_offline(tmp_path / "run").series("train/loss") == [1.0]


def test_a_folder_that_cannot_be_written(cfg: Config, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").write_text("a file in its place")
    said: list[str] = []
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=said.append) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
        tracked.summary({"train/loss": 1.0})
        assert tracked.folder is None
    assert len(said) == 1
    assert "not tracked" in said[0]


def test_the_service_dies_in_the_middle(cfg: Config, tmp_path: Path) -> None:
    said: list[str] = []
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=said.append) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
        for service in services():
            service.kill()
            service.wait()
        for step in range(1, 50):
            tracked.log({"train/loss": 1.0}, step=step)
        tracked.summary({"train/loss": 1.0})
    assert len(said) == 2, said
    with tracking.open_run(cfg, tmp_path / "next", {}, {}, warn=pytest.fail) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
    assert read_offline(tmp_path / "next").exit_code == 0


def test_a_missing_manifest_costs_a_warning(cfg: Config, tmp_path: Path) -> None:
    said: list[str] = []
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=said.append) as tracked:
        tracked.dataset(tmp_path / "nowhere")
        tracked.log({"train/loss": 1.0}, step=0)
    assert len(said) == 1
    assert read_offline(tmp_path / "run").series("train/loss") == [1.0]


def test_disabled_writes_nothing(cfg: Config, tmp_path: Path) -> None:
    cfg.tracking.mode = "disabled"
    with tracking.open_run(cfg, tmp_path / "run", {}, {}, warn=pytest.fail) as tracked:
        tracked.log({"train/loss": 1.0}, step=0)
        tracked.plots(tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_killed_run_is_readable_and_leaves_no_process(cfg: Config, tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from eagle3.config.schema import *
from eagle3.tracking.run import open_run
cfg = Config(name="q", target=TargetConfig(name="t", path="t"), dataset=DatasetConfig(name="d", path="d"))
with open_run(cfg, Path({str(tmp_path / "run")!r}), {{}}, {{}}) as tracked:
    tracked.log({{"train/loss": 1.0}}, step=0)
    print("logged", flush=True)
    time.sleep(600)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "logged\n"
    left = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGKILL)
    child.wait()
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive
    assert read_offline(tmp_path / "run").exit_code in (None, 255)


def test_a_torn_tail_is_left_out(cfg: Config, tmp_path: Path) -> None:
    with tracking.open_run(cfg, tmp_path / "run", {}, {}) as tracked:
        for step in range(400):  # several blocks of 32 KiB
            tracked.log({"train/loss": float(step)}, step=step)
    (path,) = find_runs(tmp_path / "run")
    data = path.read_bytes()
    assert len(read_offline(path).history) == 400
    path.write_bytes(data[: len(data) // 2])
    kept = read_offline(path).series("train/loss")
    assert kept == [float(step) for step in range(len(kept))]
    assert 0 < len(kept) < 400


def test_not_a_wandb_file(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(b"something else")
    with pytest.raises(DataError, match="not a W&B file"):
        read_offline(tmp_path)
    with pytest.raises(DataError, match="no W&B run"):
        read_offline(tmp_path / "nowhere")


def _png() -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
