"""Figures as people read them: 48,120 tokens, 1.2 GiB, 3 min 04 s, accept length 1.84."""

from collections.abc import Iterable, Sequence
from typing import Any

_LABELS = {
    "loss": "loss",
    "tokens_per_s": "tokens/s",
    "data_wait": "data wait",
    "lr": "lr",
}
_SHARES = ("data_wait", "mfu", "share", "utilisation")


def quantity(value: float) -> str:
    """48120 as 48,120; 0.5 as 0.5; 1234.56 as 1,235."""
    if value != value:  # NaN
        return "nan"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def counted(number: int, what: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def numbers(values: Iterable[int]) -> str:
    """Ascending ones as `0, 1, 4 to 9`."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def acceptances(conditional: Sequence[float], digits: int = 1) -> list[str]:
    """Percentages, by draft; "-" of a draft that nothing came to, because none before it was accepted."""
    reached = [True, *(share > 0 for share in conditional)]
    return [f"{share:.{digits}%}" if all(reached[: k + 1]) else "-" for k, share in enumerate(conditional)]


def duration(seconds: float) -> str:
    """Seconds as `4 s`, `3 min 04 s` or `2 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(bytes_: float) -> str:
    """Bytes in powers of two with the unit named."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(bytes_) < 1024:
            return f"{bytes_:,.0f} {unit}" if unit == "B" else f"{bytes_:,.1f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:,.1f} TiB"


def field_text(name: str, value: Any) -> str:
    """One further field of a progress report: `free_bytes=1<<30` as `free 1.0 GiB`, `loss=2.5` as `loss 2.50`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{name.replace('_', ' ')} {value}"
    if name == "bytes" or name.endswith("_bytes"):
        label = name.removesuffix("_bytes").removesuffix("bytes")
        return f"{label} {size(value)}".strip().replace("_", " ")
    if name.endswith("bytes_per_s"):
        label = name.removesuffix("bytes_per_s").strip("_").replace("_", " ")
        return f"{label} {value / 1e9:.2f} GB/s".strip()
    if name in ("gb", "gb_per_s"):
        text = f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"
        return f"{text} GB{'/s' if name == 'gb_per_s' else ''}"
    if name.endswith("_gib"):
        return f"{name.removesuffix('_gib').replace('_', ' ')} {value:,.1f} GiB"
    if name.endswith("_per_s"):
        return f"{quantity(value)} {name.removesuffix('_per_s').replace('_', ' ')}/s"
    if any(share in name for share in _SHARES) and 0 <= value <= 1:
        return f"{name.replace('_', ' ')} {value:.1%}"
    if name == "accept_length":
        return f"accept length {value:.2f}"
    label = _LABELS.get(name, name.replace("_", " "))
    if name == "lr" and not float(value).is_integer():
        return f"{label} {value:.2e}"
    return f"{label} {quantity(value)}"
