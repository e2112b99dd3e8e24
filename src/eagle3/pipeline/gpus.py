"""Are there as many GPUs here as the servers of a run take?"""

import dataclasses
from collections.abc import Iterable

from eagle3.config import Config
from eagle3.config.differences import flat
from eagle3.errors import ConfigError
from eagle3.tracking.cost import gpus


def require_server_gpus(cfg: Config, stages: Iterable[str]) -> None:
    """Of the servers that these stages run, one after the other. Raises ConfigError where one takes more than there
    are: SGLang would say so after minutes, and after what comes before it."""
    asked = dict(flat(dataclasses.asdict(cfg)))
    needed = {stage: gpus(stage, asked) for stage in stages}
    if not any(needed.values()):
        return
    import torch

    there = torch.cuda.device_count()
    for stage, count in needed.items():
        if count > there:
            replicas = f" x {count // cfg.server.tp} (replicas or pipeline stages)" if count > cfg.server.tp else ""
            raise ConfigError(
                f"server.tp: {cfg.server.tp}{replicas}: the server of {stage} takes {count}, and torch finds {there} "
                "GPUs here; give at most that, see whether CUDA_VISIBLE_DEVICES hides some, or choose server=cpu"
            )
