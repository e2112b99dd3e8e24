"""Where training runs: this process's place among the ranks, its device, its threads, and its random numbers."""

import os
import random
from dataclasses import dataclass

import numpy as np
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from eagle3.config.schema import TrainerConfig
from eagle3.errors import ConfigError


@dataclass(frozen=True)
class Machine:
    device: torch.device
    rank: int = 0
    world: int = 1
    """Processes, as torchrun started them; 1 without it."""
    local_world: int = 1

    @staticmethod
    def of(cfg: TrainerConfig) -> "Machine":
        """Raises ConfigError for a GPU that is not there."""
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local_rank, local_world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if cfg.devices != local_world:
            raise ConfigError(
                f"trainer.devices={cfg.devices}, but {local_world} processes were started here; for several devices: "
                f"torchrun --nproc-per-node={cfg.devices} -m eagle3.training.main JOB.json"
            )
        if cfg.accelerator == "cpu":
            return Machine(torch.device("cpu"), rank, world, local_world)
        if local_world > torch.cuda.device_count():
            raise ConfigError(
                f"trainer.accelerator=gpu, trainer.devices={cfg.devices}: torch finds {torch.cuda.device_count()} CUDA "
                "devices. Choose trainer=cpu or fewer devices; `eagle3 doctor` says what is missing."
            )
        return Machine(torch.device("cuda", local_rank), rank, world, local_world)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def settle(self, seed: int) -> None:
        """Seeds, and arithmetic that is the same in every run (CPU) or fast (GPU)."""
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        if self.on_gpu:
            torch.cuda.set_device(self.device)
            # TF32: exact for products of bfloat16, of which there are many; weights and optimiser stay fp32.
            torch.set_float32_matmul_precision("high")
        else:
            torch.use_deterministic_algorithms(True)

    @property
    def devices(self) -> int | list[int]:
        """For Lightning's Trainer."""
        if self.world > 1:
            return self.local_world
        return [self.device.index] if self.on_gpu else 1

    @property
    def environment(self) -> ClusterEnvironment:
        # Named, because Lightning would take SLURM's variables for a job of many ranks.
        return LightningEnvironment() if self.world == 1 else TorchElasticEnvironment()

    @property
    def strategy(self) -> DDPStrategy | str:
        return DDPStrategy(gradient_as_bucket_view=True, broadcast_buffers=False) if self.world > 1 else "auto"
