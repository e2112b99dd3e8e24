"""--where and --sort: over the keys of the configuration and the figures of the table."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from eagle3.comparison.columns import Column
from eagle3.comparison.variants import Variant, shown
from eagle3.errors import ConfigError

_CONDITION = re.compile(r"\s*([\w./]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_TESTS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def where(variants: Sequence[Variant], conditions: Sequence[str], columns: Sequence[Column]) -> list[Variant]:
    """Those that meet all conditions, each `key=value`, `!=`, `<`, `<=`, `>` or `>=`.

    Raises:
        ConfigError: a condition that can't be read, or a key that no run has.
    """
    kept = list(variants)
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise ConfigError(f"--where {condition}: write KEY=VALUE, or !=, <, <=, >, >= in place of the =")
        key, sign, wanted = parts[1], parts[2], parts[3]
        value_of = _value_of(key, variants, columns)
        kept = [variant for variant in kept if _holds(value_of(variant), sign, wanted, condition)]
    return kept


def sort(variants: Sequence[Variant], key: str, columns: Sequence[Column], reverse: bool) -> list[Variant]:
    """Best first by a figure, ascending by a key of the configuration; those without a value last.

    Raises:
        ConfigError: a key that no run has.
    """
    value_of = _value_of(key, variants, columns)
    better = next((column.more_is_better for column in columns if column.key == key), False)
    known = [variant for variant in variants if value_of(variant) is not None]
    numbers = all(_number(value_of(variant)) is not None for variant in known)
    known.sort(key=lambda v: _number(value_of(v)) if numbers else shown(value_of(v)), reverse=better != reverse)  # type: ignore[arg-type, return-value]
    return known + [variant for variant in variants if value_of(variant) is None]


def _value_of(key: str, variants: Sequence[Variant], columns: Sequence[Column]) -> Callable[[Variant], Any]:
    for column in columns:
        if column.key == key:
            return column.value
    keys = sorted({name for variant in variants for name in variant.runs[0].config})
    ending = [name for name in keys if name == key or name.endswith(f".{key}")]
    if key in ending:
        ending = [key]
    if len(ending) == 1:
        return lambda variant: variant.runs[0].config.get(ending[0])
    if ending:
        raise ConfigError(f"{key}: could be {', '.join(ending)}; give one of these")
    figures = ", ".join(column.key for column in columns)
    raise ConfigError(f"{key}: no figure and no key of these runs' configurations; figures: {figures}")


def _holds(value: Any, sign: str, wanted: str, condition: str) -> bool:
    number, limit = _number(value), _number(wanted)
    if sign in ("=", "!="):
        same = number == limit if number is not None and limit is not None else shown(value) == wanted.replace(" ", "")
        return same == (sign == "=")
    if limit is None:
        raise ConfigError(f"--where {condition}: {sign} needs a number, not {wanted!r}")
    return number is not None and _TESTS[sign](number, limit)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, list):
        return None
    try:
        return float(value)
    except ValueError:
        return None
