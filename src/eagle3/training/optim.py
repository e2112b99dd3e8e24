"""AdamW over fp32 weights, linear warm-up, cosine to zero."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from eagle3.config.schema import OptimConfig


def build_optimizer(parameters: Iterable[nn.Parameter], cfg: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW; weight decay on matrices only. Its state has the parameters' type, which training keeps at fp32."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": cfg.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    beta1, beta2 = cfg.betas
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=cfg.lr, betas=(beta1, beta2), fused=True)


def lr_factor(step: int, total: int, warmup_ratio: float) -> float:
    """Share of the full learning rate in optimiser step `step`, 0-based, of `total`.

    Linear up to 1 in the warm-up's last step, then a cosine that would reach 0 in the step after the last one.
    """
    warmup = math.ceil(total * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min((step - warmup) / max(total - warmup, 1), 1.0)))


def build_schedule(
    optimizer: torch.optim.Optimizer, total: int, warmup_ratio: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """`lr_factor`, to be stepped after each optimiser step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, total, warmup_ratio))
