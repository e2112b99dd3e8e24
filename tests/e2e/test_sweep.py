"""A sweep by the command a user types: one extraction that two want, a job that fails, Ctrl-C, and the rest.

The tests follow one another in one folder: what one has made, the next finds.
"""

import json
import re
import signal
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.e2e.chat_model import write_chat_model, write_conversations
from tests.e2e.test_run import leftovers, overrides, run, start

from eagle3.config import PROJECT
from eagle3.data.shards import HiddenStates
from eagle3.server.nccl_log import unused
from eagle3.tracking.offline import read_offline

pytestmark = pytest.mark.e2e
JOBS = ["layers.boundaries=[1,3],[3,5]", "drafter.draft_vocab_size=128,100000"]
"""The second draft vocabulary is larger than the target's: jobs 1 and 3 fail once the target is at hand."""

LEFT_BY_SGLANG = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
"""What SGLang itself sets in its processes where they are not set."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    write_chat_model(folder / "model")
    write_conversations(folder / "chat.jsonl", 200)
    return folder


def kept(place: Path) -> list[str]:
    varied = ("layers.", "drafter.", "name=", "server.concurrency")
    return [*(item for item in overrides(place) if not item.startswith(varied)), "server.concurrency=1"]


def sweep(place: Path, *more: str) -> list[str]:
    primary = ["--config-dir", str(PROJECT / "sweeps"), "--config-name", "layers"]
    return [*primary, *kept(place), *JOBS, "seed=0", *more]


def statuses(folder: Path) -> dict[str, str]:
    return {path.parent.name: json.loads(path.read_text())["status"] for path in sorted(folder.glob("*/job.json"))}


def test_another_run_waits_for_the_extraction_and_takes_it_over_from_a_killed_sweep(
    place: Path, tmp_path: Path
) -> None:
    owner = start(sweep(place), tmp_path)
    deadline = time.monotonic() + 300
    while not any(path.read_text() for path in (place / "artifacts" / "extract").glob("*/*/work/ledger-*.jsonl")):
        assert owner.poll() is None, owner.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    single = ["name=tiny", "layers.boundaries=[1,3]", "layers.capture=[1,3,5]", "drafter.draft_vocab_size=128"]
    second = start([*kept(place), *single, "until=extract"], tmp_path)
    assert second.stdout is not None
    heard = []
    for line in second.stdout:
        heard.append(line)
        if "another run is making" in line:
            break
    assert re.search(r"waiting for it \(process \d+ on \S+, since ", heard[-1]), "".join(heard)
    assert owner.poll() is None, "the first is still at work"
    owner.send_signal(signal.SIGKILL)
    heard += [second.communicate(timeout=400)[0]]
    owner.wait()
    assert second.returncode == 0, "".join(heard)
    assert "sequences are there already" in heard[-1], "what the first had made is kept"
    (folder,) = (place / "artifacts" / "extract").glob("*/*")
    assert json.loads((folder / "manifest.json").read_text())["complete"]
    assert len(HiddenStates(folder)) == 200
    assert not leftovers(place)


def test_stopped_in_its_third_job_the_same_command_runs_what_is_missing(place: Path, tmp_path: Path) -> None:
    process = start(sweep(place), tmp_path)
    deadline = time.monotonic() + 400
    while not list((place / "runs" / "layers").glob("sweep_*/2/logs/train.log")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert not leftovers(place)
    (folder,) = (place / "runs" / "layers").glob("sweep_*")
    assert statuses(folder) == {"0": "done", "1": "failed", "2": "interrupted"}
    assert "not run" in (folder / "sweep.md").read_text()

    code, output = run(sweep(place), tmp_path)
    assert code == 1, output
    assert "job 0: layers.boundaries=[1,3] drafter.draft_vocab_size=128: done before" in output
    assert statuses(folder) == {"0": "done", "1": "failed", "2": "done", "3": "failed"}
    assert list((place / "runs" / "layers").glob("sweep_*")) == [folder], "the same command, the same folder"
    table = (folder / "sweep.md").read_text()
    assert "drafter.draft_vocab_size" in table
    assert "job 1, 3 failed: " in table
    assert str(folder / "3" / "logs" / "job.log") in table
    assert "by accept length" in table
    assert "Traceback" not in output
    assert [path.name for path in (place / "artifacts" / "extract").glob("*/*")] == ["b1.3.5"], "one extraction"
    assert len(list((place / "artifacts" / "train").glob("*/DONE"))) == 2


def test_each_job_is_a_wandb_run_of_the_sweeps_group(place: Path) -> None:
    (folder,) = (place / "runs" / "layers").glob("sweep_*")
    found = [read_offline(path) for path in folder.glob("[02]/wandb/offline-run-*/*.wandb")]
    assert {item.group for item in found} == {f"layers/{folder.name}"}
    assert len({item.run_id for item in found}) == len(found) >= 2


def test_fail_fast_stops_at_the_first_failure_and_is_the_same_sweep(place: Path, tmp_path: Path) -> None:
    code, output = run(sweep(place, "sweep.fail_fast=true"), tmp_path)
    assert code == 1, output
    assert "job 1 failed" in output
    assert "Error executing job" not in output
    assert "job 2: " not in output
    assert "Traceback" not in output
    assert len(list((place / "runs" / "layers").glob("sweep_*"))) == 1


def test_layers_under_an_nccl_profile_that_is_seen_in_the_running_server(place: Path, tmp_path: Path) -> None:
    """One measurement for both choices. On a CPU NCCL does nothing; the profile reaches the server all the same."""
    small = "bench.concurrency=[1,2] bench.decode_tokens=8 bench.prefill_prompts=2 bench.prefill_tokens=64"
    primary = ["--config-dir", str(PROJECT / "sweeps"), "--config-name", "nccl_x_layers"]
    jobs = ["nccl@nccl.serving=ring_ll", JOBS[0], "drafter.draft_vocab_size=128", "seed=0", "bench.repeats=2"]
    code, output = run([*primary, *kept(place), *small.split(), *jobs], tmp_path)
    assert code == 0, output
    (folder,) = (place / "runs" / "nccl_x_layers").glob("sweep_*")
    assert [path.name for path in (place / "artifacts" / "extract").glob("*/*")] == ["b1.3.5"]
    assert len(list((place / "artifacts" / "bench").glob("*/DONE"))) == 1
    assert len(list((place / "artifacts" / "train").glob("*/DONE"))) == 2, "those of the other sweep"
    told = json.loads((folder / "1" / "report" / "nccl.json").read_text())
    profile = OmegaConf.load(PROJECT / "conf" / "nccl" / "ring_ll.yaml").env
    assert dict(profile).items() <= told["environment"].items()
    assert set(told["environment"]) == {*profile, "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", *LEFT_BY_SGLANG}
    assert told["version"] is None
    assert unused(told)
    first, second = (json.loads((folder / job / "report" / "summary.json").read_text()) for job in "01")
    assert all(first[f"bench/{name}"] == second[f"bench/{name}"] > 0 for name in ("decode_1", "decode_2", "prefill"))
    spent = sum(value for name, value in first.items() if name.endswith("/stage_seconds"))
    assert first["bench/stage_seconds"] > 0
    assert first["cost/cpu_hours"] == pytest.approx(spent / 3600, abs=1e-5)
    assert "\n| bench | " in (folder / "0" / "report" / "report.md").read_text()
    table = (folder / "sweep.md").read_text()
    assert "extraction: prefill, tokens/s" in table
    assert "by accept length" in table
    assert "by extraction" not in table, "one measurement is no ranking"
    assert "job 0, 1: NCCL was not used (one GPU, or a CPU): its profile changed nothing" in table
