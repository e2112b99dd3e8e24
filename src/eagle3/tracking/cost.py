"""What making a run's artifacts took, in hours of GPUs."""

from collections.abc import Mapping
from typing import Any

NAMESPACES = {"prepare": "prepare", "extract": "extract", "train": "train", "evaluate": "eval", "bench": "bench"}
"""Stage -> where its figures are in a summary."""


def gpus(stage: str, config: Mapping[str, Any]) -> int:
    """GPUs that a stage holds; 0 on a CPU. `config`: by dotted key."""
    serves = stage in ("extract", "bench") or (stage == "prepare" and bool(config.get("prepare.regenerate")))
    if serves and config.get("server.device") == "cuda":
        return int(config.get("server.tp") or 1)
    if stage in ("train", "evaluate") and config.get("trainer.accelerator") == "gpu":
        every = int(config.get("trainer.devices") or 1) * int(config.get("trainer.nodes") or 1)
        return every if stage == "train" else 1
    return 0


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
