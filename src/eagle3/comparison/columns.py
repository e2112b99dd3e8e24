"""The columns of a comparison: each with its key, its heading, its value and how that is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle3.comparison.variants import Variant
from eagle3.tracking.units import quantity


@dataclass(frozen=True)
class Column:
    """One figure of a variant."""

    key: str
    """For --sort, --where, CSV and W&B."""
    title: str
    value: Callable[[Variant], float | None]
    show: Callable[[float], str]
    more_is_better: bool = True
    source: str | None = None
    """Its name in report/summary.json, where it is one figure of each run."""


_FURTHER = (
    ("speedup", "speed-up", "serve/speedup", "{:.2f}x", True),
    ("served_tokens_per_s", "served, tokens/s", "serve/tokens_per_s", "", True),
    ("decode_1", "decode 1, tokens/s", "bench/decode_1", "", True),
    ("decode_4", "decode 4, tokens/s", "bench/decode_4", "", True),
    ("decode_16", "decode 16, tokens/s", "bench/decode_16", "", True),
    ("prefill", "prefill, tokens/s", "bench/prefill", "", True),
    ("extract_tokens_per_s", "extract, tokens/s", "extract/tokens_per_s", "", True),
    ("train_tokens_per_s", "train, tokens/s", "train/tokens_per_s", "", True),
    ("gpu_hours", "GPU-hours", "cost/gpu_hours", "{:.3g}", False),
    ("cpu_hours", "hours on CPU", "cost/cpu_hours", "{:.3g}", False),
    ("dataset_tokens", "tokens", "extract/tokens", "", True),
)
"""(key, heading, name in report/summary.json, format, more is better); shown where some run has it."""
_NOT_IF_ZERO = ("gpu_hours", "cpu_hours")


def columns_of(variants: Sequence[Variant], steps: int) -> list[Column]:
    """Those that some variant has a figure for; accept lengths are those of `steps` drafted tokens."""
    columns = [
        Column("accept_length", "accept length", lambda v: v.accept_length(steps), "{:.3f}".format),
        *(_step(k) for k in range(max(variant.steps for variant in variants))),
    ]
    for key, title, name, form, better in _FURTHER:
        show = form.format if form else lambda value: quantity(round(value))
        columns.append(Column(key, title, lambda v, name=name: v.figure(name), show, better, name))

    def has(column: Column) -> bool:
        values = [value for variant in variants if (value := column.value(variant)) is not None]
        return any(values) if column.key in _NOT_IF_ZERO else bool(values)

    return [column for column in columns if has(column)]


def _step(k: int) -> Column:
    def value(variant: Variant) -> float | None:
        found = variant.by_step()
        return found[k] if k < len(found) else None

    return Column(f"acceptance_{k + 1}", f"token {k + 1}", value, "{:.1%}".format)


def dataset_of(variant: Variant) -> str:
    """Its name, and enough of its fingerprint to see two versions apart."""
    run = variant.runs[0]
    name, fingerprint = run.config.get("dataset.name"), run.dataset
    return f"{name} {str(fingerprint)[:8]}" if fingerprint else str(name)
