"""`trainer.deterministic`: that it reaches the training; and on a GPU, that a repeated one is the same bit by bit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training.made import load_job, make_job, make_prompts, make_states, make_target, write_job
from tests.training.running import run, same, weights
from torch.utils._python_dispatch import TorchDispatchMode

from eagle3.drafter import fused
from eagle3.training.machine import CUBLAS_WORKSPACE, Machine

NO_WAY_ON_CUDA = {
    *("histc", "median", "kthvalue", "put", "put_", "nll_loss_forward", "nll_loss2d_forward", "_embedding_bag"),
    *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_ctc_loss_backward", "scatter_reduce", "resize_"),
    *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "adaptive_max_pool2d_backward", "max_unpool2d"),
    *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "reflection_pad1d_backward", "bincount"),
}
"""What `torch.use_deterministic_algorithms` documents to raise on CUDA, by aten's names; some only in a certain use."""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("deterministic", [True, False])
def test_it_reaches_the_process_that_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    asked: list[tuple[int, bool]] = []
    settle = Machine.settle

    def noted(self: Machine, seed: int, deterministic: bool = False) -> None:
        asked.append((seed, deterministic))
        settle(self, seed, deterministic)

    monkeypatch.setattr(Machine, "settle", noted)
    make_job(tmp_path)
    trainer = {"deterministic": deterministic, "max_steps": 1}
    run(load_job(tmp_path, tmp_path / "out", trainer=trainer))
    assert asked == [(3, deterministic)]
    assert torch.are_deterministic_algorithms_enabled(), "a CPU is so anyway"
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_is_settled_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is made up: there is none where tests run."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    precision = torch.get_float32_matmul_precision()
    tensor: Any = SimpleNamespace(is_cuda=True)
    try:
        torch.use_deterministic_algorithms(False)
        Machine(torch.device("cuda", 0)).settle(0)
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert fused._pays(tensor)
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
        Machine(torch.device("cuda", 0)).settle(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled(), "FlashAttention would not be"
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == CUBLAS_WORKSPACE
        assert not fused._pays(tensor)
    finally:
        torch.set_float32_matmul_precision(precision)


class Operations(TorchDispatchMode):
    """Notes what runs, of backward passes too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[tuple[Any, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.setdefault(func.overloadpacket.__name__, []).append((args, kwargs or {}))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("num_layers", [1, 2])
def test_nothing_runs_that_cuda_has_no_deterministic_way_for(tmp_path: Path, num_layers: int) -> None:
    """As far as a CPU shows it: what is done on a GPU alone is in the test below."""
    make_job(tmp_path)
    drafter, trainer = {"num_layers": num_layers}, {"epochs": 1, "deterministic": True}
    with Operations() as operations:
        run(load_job(tmp_path, tmp_path / "out", drafter=drafter, trainer=trainer))
    assert {"mm", "_fused_adamw_", "index_copy_", "scatter_reduce_"} <= operations.seen.keys()
    assert operations.seen.keys() & NO_WAY_ON_CUDA <= {"bincount"}
    assert all(weights is None for (_, weights, *_), _ in operations.seen["bincount"]), "they would add in any order"
    assert {args[4] for args, _ in operations.seen["scatter_reduce_"]} == {"amax"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch finds no CUDA device")
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_on_a_gpu_a_training_repeated_is_the_same_bit_by_bit(tmp_path: Path, precision: str, num_layers: int) -> None:
    """Two processes, as a replay has it. In bf16 with FlashAttention, over documents of many blocks of its keys: sums
    of two or three parts would be the same in any order."""
    embedding = make_target(tmp_path / "target")
    prompts = make_prompts(tmp_path / "prompts", 60, seed=0, longest=1500)
    make_states(tmp_path / "states", prompts, embedding, seed=0)
    ends = []
    for name in ("first", "again"):
        trainer = {"accelerator": "gpu", "precision": precision, "deterministic": True, "tokens_per_batch": 8192}
        drafter = {"num_layers": num_layers, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
        job = write_job(tmp_path, tmp_path / name, trainer=trainer | {"epochs": 10}, drafter=drafter)
        done = subprocess.run(
            [sys.executable, "-m", "eagle3.training.main", str(job)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        ends.append(weights(tmp_path / name))
    assert same(*ends)
