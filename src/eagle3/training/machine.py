"""Where training runs: this process's place among the ranks, its device, its threads, and its random numbers.

Without Lightning, which takes seconds to import and evaluation does not need.
"""

import os
import random
from dataclasses import dataclass

import numpy as np
import torch

from eagle3.config.schema import TrainerConfig
from eagle3.errors import ConfigError

CUBLAS_WORKSPACE = ":4096:8"
"""Eight buffers of 4 MiB, with which cuBLAS gives the same sums every time; torch refuses a product without it."""


@dataclass(frozen=True)
class Machine:
    device: torch.device
    rank: int = 0
    world: int = 1
    """Processes, as torchrun started them; 1 without it."""
    local_world: int = 1

    @staticmethod
    def of(cfg: TrainerConfig, devices: int | None = None) -> "Machine":
        """Of this process, one of `devices` (by default those of `trainer.devices` and `trainer.nodes`).

        Raises:
            ConfigError: another number of processes was started, or a GPU is not there.
        """
        devices, nodes = (cfg.devices, cfg.nodes) if devices is None else (devices, 1)
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local_rank, local_world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if devices != local_world or devices * nodes != world:
            raise ConfigError(
                f"trainer.devices={devices}, trainer.nodes={nodes}, but {local_world} processes were started here and "
                f"{world} in all; `python -m eagle3.training.ranks JOB.json` starts them"
            )
        if cfg.accelerator == "cpu":
            return Machine(torch.device("cpu"), rank, world, local_world)
        if local_world > torch.cuda.device_count():
            raise ConfigError(
                f"trainer.accelerator=gpu, trainer.devices={devices}: torch finds {torch.cuda.device_count()} CUDA "
                "devices. Choose trainer=cpu or fewer devices; `eagle3 doctor` says what is missing."
            )
        return Machine(torch.device("cuda", local_rank), rank, world, local_world)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def settle(self, seed: int, deterministic: bool = False) -> None:
        """Seeds, and arithmetic that is the same in every run (a CPU's always, a GPU's where asked) or fast.

        Before anything else uses the GPU.
        """
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        if deterministic or not self.on_gpu:
            # What has no such way is to raise, not to warn: FlashAttention's backward adds in order only then.
            torch.use_deterministic_algorithms(True)
        if self.on_gpu:
            if deterministic:
                os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
            torch.cuda.set_device(self.device)
            # TF32: exact for products of bfloat16, of which there are many; weights and optimiser stay fp32.
            torch.set_float32_matmul_precision("high")
