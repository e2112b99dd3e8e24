"""What making a run's artifacts took, in hours of GPUs."""

from collections.abc import Mapping
from typing import Any

NAMESPACES = {"prepare": "prepare", "extract": "extract", "train": "train", "evaluate": "eval", "bench": "bench"}
"""Stage -> where its figures are in a summary."""


_SERVED_BY = {"prepare": "serving", "extract": "extraction", "evaluate": "serving", "bench": "serving"}
"""Stages that may run a server -> whose flags it has."""
_SIZES = (("dp_size", "data_parallel_size"), ("pp_size", "pipeline_parallel_size"))
"""SGLang's flags that multiply the GPUs of a server, each by its names."""


def gpus(stage: str, config: Mapping[str, Any]) -> int:
    """GPUs that a stage holds; 0 on a CPU. `config`: by dotted key."""
    served = config.get("evaluate.kind") == "served"
    if stage in ("extract", "bench") or (stage, served) == ("evaluate", True) or _regenerates(stage, config):
        return _of_server(config, _SERVED_BY[stage]) if config.get("server.device") == "cuda" else 0
    if stage in ("train", "evaluate") and config.get("trainer.accelerator") == "gpu":
        every = int(config.get("trainer.devices") or 1) * int(config.get("trainer.nodes") or 1)
        return every if stage == "train" else 1
    return 0


def _regenerates(stage: str, config: Mapping[str, Any]) -> bool:
    return stage == "prepare" and bool(config.get("prepare.regenerate"))


def _of_server(config: Mapping[str, Any], role: str) -> int:
    """Of one server: replicas and stages of a pipeline each have their own. Several that are up side by side
    (`evaluate.beside`) share theirs."""

    def flag(*names: str) -> Any:
        found = [config.get(f"server.flags.{part}.{name}") for part in (role, "common") for name in names]
        return next((value for value in found if value is not None), None)

    replicas, stages = (int(flag(*names) or 1) for names in _SIZES)
    if flag("enable_dp_attention"):  # they are groups within the tensor-parallel ranks
        replicas = 1
    return int(config.get("server.tp") or 1) * replicas * stages


def stage_hours(summary: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """{stage: (hours of GPUs, hours without one)} of a run's summary; what it reused counts as it was made."""
    found = {}
    for stage, namespace in NAMESPACES.items():
        seconds = summary.get(f"{namespace}/stage_seconds")
        if isinstance(seconds, int | float):
            held = gpus(stage, config)
            found[stage] = (seconds * held / 3600, 0.0 if held else seconds / 3600)
    return found


def cost_figures(summary: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, float]:
    """`cost/gpu_hours`, and `cost/cpu_hours` of the stages that held no GPU."""
    hours = stage_hours(summary, config).values()
    return {
        "cost/gpu_hours": round(sum(gpu for gpu, _ in hours), 5),
        "cost/cpu_hours": round(sum(cpu for _, cpu in hours), 5),
    }
