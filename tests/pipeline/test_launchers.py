"""A sweep whose jobs Hydra's launchers run in other processes: each device has one job at a time, Ctrl-C reaches all.

Slurm's launcher by its local executor, which differs from it in nothing but sbatch; Ray's where Ray is installed.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import leftovers, overrides
from tests.peers import peer_path

from eagle3.config import PROJECT

RAY = [
    "hydra/launcher=ray_cluster",
    "hydra.launcher.ray.init.address=local",
    "+hydra.launcher.ray.init.num_gpus=1",  # of this name only: Ray counts them, and no job here needs one
    "hydra.launcher.ray.remote.num_cpus=1",
    "+hydra.launcher.ray.init.include_dashboard=false",
]


def start(place: Path, *arguments: str, path: Path | None = None) -> subprocess.Popen[str]:
    paths = [str(path)] if path else []
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*paths, str(PROJECT / "src"), environment.get("PYTHONPATH", "")])
    small = ["until=prepare", "tracking=disabled", "dataset.seed=0,1"]
    command = [sys.executable, str(PROJECT / "run.py"), "-m", *overrides(place), *small, *arguments]
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("launcher", ["submitit", "ray"])
def test_two_jobs_one_at_a_time_and_stopped_and_continued(tmp_path: Path, launcher: str) -> None:
    path, given = None, RAY
    if launcher == "submitit":
        path = peer_path("hydra-submitit-launcher", "1.2.0")
        given = ["hydra/launcher=local", f"sweep.devices=[test-{os.getpid()}]"]
    elif importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install hydra-ray-launcher")
    write_chat_model(tmp_path / "model")
    write_conversations(tmp_path / "chat.jsonl", 20)
    process = start(tmp_path, *given, path=path)
    assert process.stdout is not None
    folder = tmp_path / "runs" / "tiny"
    while not (begun := list(folder.glob("sweep_*/*/job.json"))):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert len(begun) == 1
    assert not leftovers(tmp_path)
    (sweep,) = folder.iterdir()
    assert _statuses(sweep) == ["interrupted"], output

    process = start(tmp_path, *given, path=path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert _statuses(sweep) == ["done", "done"]
    # A job writes config.yaml when it has its device, and DONE before it gives it back.
    times = [[(sweep / job / name).stat().st_mtime for name in ("config.yaml", "DONE")] for job in "01"]
    first, second = sorted(times)
    assert first[1] < second[0], "both ran at once"


def _statuses(sweep: Path) -> list[str]:
    return [json.loads(path.read_text())["status"] for path in sorted(sweep.glob("[01]/job.json"))]


@pytest.mark.parametrize(
    ("launcher", "code", "says"),
    [
        ("local", 2, "error: sweep.devices: this launcher starts all jobs at once"),
        ("slurm", 1, 'error: the launcher gave up: RuntimeError: Could not detect "srun"'),
    ],
)
def test_what_a_launcher_lacks_is_said(tmp_path: Path, launcher: str, code: int, says: str) -> None:
    if launcher == "slurm" and shutil.which("srun"):
        pytest.skip("this machine has Slurm")
    (tmp_path / "model").mkdir()
    process = start(tmp_path, f"hydra/launcher={launcher}", path=peer_path("hydra-submitit-launcher", "1.2.0"))
    output, _ = process.communicate(timeout=100)
    assert process.returncode == code, output
    assert says in output
    assert "Traceback" not in output
