"""Are there as many GPUs here as a run takes?"""

import dataclasses
from collections.abc import Iterable

from eagle3.config import Config
from eagle3.config.differences import flat
from eagle3.config.validate import BENCH, STAGES
from eagle3.errors import ConfigError
from eagle3.pipeline.imported import is_imported
from eagle3.pipeline.stages import left_out
from eagle3.tracking.cost import gpus


def require_gpus(cfg: Config) -> None:
    """Raises ConfigError: a GPU that is not there is said now, not after hours of extraction."""
    if cfg.until != BENCH:
        _require_devices(cfg)
    if cfg.until == BENCH or cfg.bench.in_run:
        _require_server_gpus(cfg, [BENCH])


def _require_devices(cfg: Config) -> None:
    """Of all stages of a run that makes or measures a drafter."""
    last = STAGES.index(cfg.until)
    stages = {*STAGES[: last + 1]} - left_out(cfg)
    serves = "evaluate" in stages and cfg.evaluate.kind == "served"
    extracts = "extract" in stages and not is_imported(cfg)
    asks = cfg.prepare.regenerate and not is_imported(cfg)
    trains = "train" in stages
    computes = trains or ("evaluate" in stages and not serves)
    wanted = ["server.device=cuda"] * (cfg.server.device == "cuda" and (extracts or serves or asks))
    wanted += ["trainer.accelerator=gpu"] * (cfg.trainer.accelerator == "gpu" and computes)
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        # A CPU can't serve a drafter, but a chain measures the same acceptance.
        instead = "server=cpu trainer=cpu evaluate=chain" if serves else "server=cpu trainer=cpu"
        raise _no_gpu(", ".join(wanted), instead)
    if trains and cfg.trainer.accelerator == "gpu" and cfg.trainer.devices > torch.cuda.device_count():
        raise ConfigError(
            f"trainer.devices: {cfg.trainer.devices}, and torch finds {torch.cuda.device_count()} GPUs here; "
            "give at most that, or see whether CUDA_VISIBLE_DEVICES hides some"
        )
    uses = {"prepare": asks, "extract": extracts, "evaluate": serves}
    _require_server_gpus(cfg, [stage for stage, serving in uses.items() if serving])


def _require_server_gpus(cfg: Config, stages: Iterable[str]) -> None:
    """Of the servers that these stages run, one after the other. Raises ConfigError where one takes more than there
    are: SGLang would say so after minutes, and after what comes before it."""
    asked = dict(flat(dataclasses.asdict(cfg)))
    needed = {stage: gpus(stage, asked) for stage in stages}
    if not any(needed.values()):
        return
    import torch

    if (there := torch.cuda.device_count()) == 0:
        raise _no_gpu("server.device=cuda", "server=cpu")
    for stage, count in needed.items():
        if count > there:
            replicas = f" x {count // cfg.server.tp} (replicas or pipeline stages)" if count > cfg.server.tp else ""
            raise ConfigError(
                f"server.tp: {cfg.server.tp}{replicas}: the server of {stage} takes {count}, and torch finds {there} "
                "GPUs here; give at most that, see whether CUDA_VISIBLE_DEVICES hides some, or choose server=cpu"
            )


def _no_gpu(wanted: str, instead: str) -> ConfigError:
    return ConfigError(
        f"{wanted}: torch finds no GPU here; choose {instead}, or run `eagle3 doctor`, which says what is missing"
    )
