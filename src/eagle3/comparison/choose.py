"""--where and --sort: over the keys of the configuration and the figures of the table."""

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

from eagle3.comparison.columns import Column
from eagle3.comparison.grouping import shown
from eagle3.comparison.runs import Run, dataset_of
from eagle3.comparison.variants import Variant
from eagle3.errors import ConfigError

_CONDITION = re.compile(r"\s*([\w./]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_TESTS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def where(
    runs: Sequence[Run], conditions: Sequence[str], variants: Sequence[Variant], columns: Sequence[Column]
) -> list[Run]:
    """Runs that meet all conditions, each `key=value`, `!=`, `<`, `<=`, `>` or `>=`.

    A key of the configuration is that of each run. A figure is its row's, over all seeds: seeds are not picked by how
    well they did.

    Raises:
        ConfigError: a condition that can't be read, or a key that no run has.
    """
    kept = list(runs)
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise ConfigError(f"--where {condition}: write KEY=VALUE, or !=, <, <=, >, >= in place of the =")
        key, sign, wanted = parts[1], parts[2], parts[3]
        column = next((column for column in columns if column.key == key), None)
        if column is not None:
            rows = [variant for variant in variants if _holds(column.value(variant), sign, wanted, condition)]
            left = {id(run) for variant in rows for run in variant.runs}
            kept = [run for run in kept if id(run) in left]
        elif key == "dataset" and " " in wanted:  # as its column says it
            kept = [run for run in kept if (dataset_of(run) == wanted) == (sign == "=")]
        else:
            name = _key(key, runs, columns)
            kept = [run for run in kept if _holds(run.config.get(name), sign, wanted, condition)]
    return kept


def sort(
    variants: Sequence[Variant], key: str, columns: Sequence[Column], runs: Sequence[Run], reverse: bool
) -> list[Variant]:
    """Best first by a figure, ascending by a key of the configuration; those without a value last.

    Args:
        runs: all that are compared, of which one has the key.

    Raises:
        ConfigError: a key that no run has.
    """
    column = next((column for column in columns if column.key == key), None)
    name = "" if column is not None else _key(key, runs, columns)

    def value_of(variant: Variant) -> Any:
        return column.value(variant) if column is not None else variant.runs[0].config.get(name)

    better = column is not None and column.more_is_better
    known = [variant for variant in variants if value_of(variant) is not None]
    numbers = all(_number(value_of(variant)) is not None for variant in known)
    known.sort(key=lambda v: _number(value_of(v)) if numbers else shown(value_of(v)), reverse=better != reverse)  # type: ignore[arg-type, return-value]
    return known + [variant for variant in variants if value_of(variant) is None]


def _key(key: str, runs: Sequence[Run], columns: Sequence[Column]) -> str:
    """The configuration's key of which `key` is all, the end, or what it names (`dataset` of `dataset.name`)."""
    names = sorted({name for run in runs for name in run.config})
    for wanted in (key, f"{key}.name"):
        if wanted in names:
            return wanted
        ending = [name for name in names if name.endswith(f".{wanted}")]
        if len(ending) == 1:
            return ending[0]
        if ending:
            raise ConfigError(f"{key}: could be {', '.join(ending)}; give one of these")
    figures = [column.key for column in columns]
    near = {end: name for name in [*names, *figures] for end in (name, name.rsplit(".", 1)[-1])}
    close = difflib.get_close_matches(key, near, n=1)
    hint = f"did you mean {near[close[0]]}?" if close else f"figures: {', '.join(figures)}"
    raise ConfigError(f"{key}: no figure and no key of these runs' configurations; {hint}")


def _holds(value: Any, sign: str, wanted: str, condition: str) -> bool:
    number, limit = _number(value), _number(wanted)
    if sign in ("=", "!="):
        same = number == limit if number is not None and limit is not None else _plain(shown(value)) == _plain(wanted)
        return same == (sign == "=")
    if limit is None:
        raise ConfigError(f"--where {condition}: {sign} needs a number, not {wanted!r}")
    return number is not None and _TESTS[sign](number, limit)


def _plain(text: str) -> str:
    """Without what may be written either way: spaces in a list, and true as YAML or Python have it."""
    text = text.replace(" ", "")
    return text.lower() if text.lower() in ("true", "false", "null") else text


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or isinstance(value, list):
        return None
    try:
        return float(value)
    except ValueError:
        return None
