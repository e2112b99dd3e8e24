"""Training on several ranks, real processes that talk through gloo: the same gradients, weights, and figures as on one.

Where there are two GPUs, gradients and weights through NCCL as well.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.training.made import load_job, make_prompts, make_states, make_target, write_job
from tests.training.recorded import RECORDED, record
from tests.training.running import rows, run, same, summary, weights
from tests.training.test_child import wait_for_step

from eagle3.data.shards import HiddenStates
from eagle3.drafter.check import check_drafter
from eagle3.drafter.load import load_drafter
from eagle3.metrics import Tail
from eagle3.server.process import free_port
from eagle3.training.checkpoints import load_checkpoint
from eagle3.training.machine import Machine
from eagle3.training.run import open_data

TRAINER: dict[str, Any] = {"epochs": 8, "tokens_per_batch": 64, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data in which ranks have unlike numbers of response tokens, and some micro-batches have none."""
    folder = tmp_path_factory.mktemp("ranks")
    prompts = make_prompts(folder / "prompts", 60, 0, silent=(1, 2, 3, 4, 6, 7))
    make_states(folder / "states", prompts, make_target(folder / "target"), 0)
    return folder


def start(job: Path, *node: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "eagle3.training.ranks", str(job), *node]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(*started: subprocess.Popen[str]) -> None:
    for child in started:
        _, errors = child.communicate()
        assert child.returncode == 0, errors


def rank_process(job: Path, rank: int) -> psutil.Process:
    """The training child of this rank."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        ours = line[-2:] == ["eagle3.training.main", str(job)] and "torch.distributed.run" not in line
        if ours and process.environ().get("RANK") == str(rank):
            return process
    raise AssertionError(f"no rank {rank} of {job}")


def left(job: Path) -> list[list[str]]:
    """Command lines of processes that still work on this job."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if str(job) in line]


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    """Two nodes of one rank each, which is the same as one node of two."""
    out = folder / "nodes"
    master = f"127.0.0.1:{free_port('127.0.0.1')}"
    job = write_job(folder, out, trainer=TRAINER | {"nodes": 2, "master": master})
    finish(start(job, "1"), start(job))
    return out


ON_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("gpu", marks=ON_GPUS)])
@pytest.mark.parametrize(("strategy", "num_layers"), [("ddp", 1), ("ddp", 2), ("sharded", 2)])
def test_gradients_and_weights_are_those_of_one_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, num_layers: int, accelerator: str
) -> None:
    """Two ranks that accumulate two micro-batches each, against one that accumulates four; AdamW, clipped, 3 epochs."""
    trainer = {"tokens_per_batch": 64, "epochs": 3, "accelerator": accelerator}
    drafter, name = {"num_layers": num_layers}, f"{strategy}-{num_layers}-{accelerator}"
    one = load_job(folder, folder / f"one-{name}", trainer=trainer | {"accumulate": 4}, drafter=drafter)
    with monkeypatch.context() as patch:
        expected = record(patch.setattr)
        run(one)

    ours = trainer | {"accumulate": 2, "devices": 2, "strategy": strategy}
    several = folder / f"several-{name}"
    launch = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    job = write_job(folder, several, trainer=ours, drafter=drafter)
    command = [sys.executable, "-m", *launch, "-m", "tests.training.recorded", str(job)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr + (several / "train.rank0.log").read_text()

    found = load_file(several / RECORDED)
    assert found.keys() == expected.keys()
    assert len({name.partition(".")[0] for name in found}) >= 9
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-9, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )
    for name, weight in weights(one.out).items():
        torch.testing.assert_close(weights(several)[name], weight, rtol=1e-6, atol=1e-8)
    steps = rows(one.out, "val").items()
    for step, row in steps:
        there = rows(several, "val")[step]
        assert {k: v for k, v in there.items() if "loss" not in k} == {k: v for k, v in row.items() if "loss" not in k}
        assert there["val/loss"] == pytest.approx(row["val/loss"], rel=1e-9)
    assert summary(several)["train/tokens"] == summary(one.out)["train/tokens"]


def test_ranks_differ_and_share_out_an_epoch(folder: Path) -> None:
    """What the test above rests on: unlike counts, an empty micro-batch; and no sequence is lost or seen twice."""
    job = load_job(folder, folder / "looked-at", trainer=TRAINER)
    loaders = [open_data(job, Machine(torch.device("cpu"), rank, 2, 2)).train_loader for rank in range(2)]
    assert len(loaders[0]) == len(loaders[1])
    seen: Counter[int] = Counter()
    counts = []
    for i in range(len(loaders[0])):
        step = [loader.read(0, i) for loader in loaders]
        seen.update(int(n) for batch in step for n in batch.batch.sample_ids)
        counts.append([int(batch.plan.counts[0]) for batch in step])
        together = torch.stack([batch.plan.counts for batch in step]).sum(0)
        assert all(torch.equal(batch.step_counts, together) for batch in step)
        assert step[0].tokens == step[1].tokens == sum(len(batch.batch.input_ids) for batch in step)
    assert any(a != b for a, b in counts)
    assert any(0 in pair and any(pair) for pair in counts)
    states = HiddenStates(job.dataset)
    held_out = open_data(job, Machine(torch.device("cpu"))).held_out_set.sample_ids.tolist()
    assert seen == Counter(set(states.sample_ids.tolist()) - set(held_out))


def test_a_killed_rank_is_named_and_the_same_command_continues_exactly(folder: Path, undisturbed: Path) -> None:
    out = folder / "killed"
    job = write_job(folder, out, trainer=TRAINER | {"devices": 2})
    total = int(summary(undisturbed)["train/steps"])
    with start(job) as child:
        wait_for_step(child, Tail(out / "metrics.jsonl"), 5)
        rank_process(job, 1).kill()
        _, errors = child.communicate()
    assert child.returncode == 1
    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert told[0].startswith("error: Rank 1 was ended by SIGKILL")
    assert told[0].endswith(str(out / "train.rank1.log"))
    assert left(job) == []
    assert 0 < load_checkpoint(out / "checkpoints" / "last.ckpt")["global_step"] < total
    finish(start(job))
    assert same(weights(out), weights(undisturbed))
    assert same(weights(out, "best.ckpt"), weights(undisturbed, "best.ckpt"))
    assert summary(out) == summary(undisturbed)


def test_sharded_stops_when_asked_continues_exactly_and_exports(folder: Path) -> None:
    trainer = TRAINER | {"devices": 2, "strategy": "sharded", "checkpoint_every": 1000}
    whole, out = folder / "sharded", folder / "sharded-stopped"
    finish(start(write_job(folder, whole, trainer=trainer)))
    job = write_job(folder, out, trainer=trainer)
    with start(job) as child:
        wait_for_step(child, Tail(out / "metrics.jsonl"), 5)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate()
    assert child.returncode == 130, errors
    assert left(job) == []
    assert load_checkpoint(out / "checkpoints" / "last.ckpt")["global_step"] >= 5
    assert "Interrupted; " in (out / "train.rank0.log").read_text()
    finish(start(job))
    assert same(weights(out), weights(whole))
    assert summary(out) == summary(whole)

    target = load_job(folder, out, trainer=trainer).target
    assert check_drafter(out / "drafter", target) == []
    best = {name.removeprefix("drafter."): w for name, w in weights(out, "best.ckpt").items()}
    for name, weight in load_drafter(out / "drafter").drafter.state_dict().items():
        assert torch.equal(weight, best[name].bfloat16().float()), name
