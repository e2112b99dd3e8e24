"""`python -m tests.training.recorded JOB.json`: the training child in float64, keeping every step's whole gradient.

In float64, so that what differs is a mistake and not the order of a sum. Rank 0 writes `recorded.safetensors`.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from eagle3.training import main, run
from eagle3.training.job import Job
from eagle3.training.module import DrafterModule

RECORDED = "recorded.safetensors"


def whole(tensor: Tensor) -> Tensor:
    """All of what ranks may have shared out."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def record(patch: Any = setattr) -> dict[str, Tensor]:
    """Makes trainings in this process float64, and gives what fills with `STEP.NAME` gradients."""
    found: dict[str, Tensor] = {}
    clip, initial = DrafterModule.configure_gradient_clipping, run.initial_drafter

    def keep(self: DrafterModule, *arguments: Any, **named: Any) -> None:
        for name, parameter in self.drafter.named_parameters():
            assert parameter.grad is not None
            found[f"{self.trainer.global_step}.{name}"] = whole(parameter.grad)
        clip(self, *arguments, **named)

    patch(DrafterModule, "configure_gradient_clipping", keep)
    patch(run, "initial_drafter", lambda *arguments: initial(*arguments).double())
    return found


if __name__ == "__main__":
    gradients = record()
    code = main.main(sys.argv[1:])
    if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
        save_file(gradients, Job.load(Path(sys.argv[1])).out / RECORDED)
    sys.exit(code)
