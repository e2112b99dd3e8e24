"""The columns of a comparison: each with its key, its heading, its value and how that is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle3.comparison.figures import BENCH, figures_in, rate, stage_of
from eagle3.comparison.variants import Variant
from eagle3.units import quantity


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
    ("extract_tokens_per_s", "extract, tokens/s", "extract/tokens_per_s", "", True),
    ("train_tokens_per_s", "train, tokens/s", "train/tokens_per_s", "", True),
    ("gpu_hours", "GPU-hours", "cost/gpu_hours", "{:.3g}", False),
    ("cpu_hours", "hours on CPU", "cost/cpu_hours", "{:.3g}", False),
    ("dataset_tokens", "tokens", "extract/tokens", "", True),
)
"""(key, heading, name in report/summary.json, format, more is better); shown where some run has it."""
_NOT_IF_ZERO = ("gpu_hours", "cpu_hours")
_ZERO_IS_UNKNOWN = ("extract_tokens_per_s", "train_tokens_per_s", "served_tokens_per_s")
"""Too short to have been measured."""


def columns_of(variants: Sequence[Variant], steps: int) -> list[Column]:
    """Those that some drafter has a figure for.

    Args:
        steps: drafted tokens that all have; where some draft more, the accept length with these is a column too.
    """
    columns = [Column("accept_length", "accept length", lambda v: v.accept_length(), "{:.3f}".format)]
    most = max((variant.steps for variant in variants), default=0)
    if most > steps > 0:
        columns.append(
            Column(f"accept_length_at_{steps}", f"at {steps}", lambda v: v.accept_length(steps), "{:.3f}".format)
        )
    columns += [_step(k) for k in range(most)]
    for key, title, name, form, better in _FURTHER:
        show = form.format if form else _whole if key == "dataset_tokens" else rate

        def value(variant: Variant, name: str = name, key: str = key) -> float | None:
            found = variant.figure(name)
            return None if found == 0 and key in _ZERO_IS_UNKNOWN else found

        columns.append(Column(key, title, value, show, better, name))

    def has(column: Column) -> bool:
        values = [value for variant in variants if (value := column.value(variant)) is not None]
        return any(values) if column.key in _NOT_IF_ZERO else bool(values)

    return [column for column in columns if has(column)]


def served_columns(variants: Sequence[Variant]) -> list[Column]:
    """Figures of the served target, for --where."""
    names = figures_in({name for variant in variants for run in variant.runs for name in run.summary})
    return [
        Column(name.removeprefix("bench/"), title, lambda v, name=name: v.figure(name), rate, source=name)
        for name, title in names.items()
        if stage_of(name) == BENCH
    ]


def _whole(value: float) -> str:
    return quantity(round(value))


def _step(k: int) -> Column:
    def value(variant: Variant) -> float | None:
        found = variant.by_step()
        return found[k] if k < len(found) else None

    return Column(f"acceptance_{k + 1}", f"token {k + 1}", value, "{:.1%}".format)
