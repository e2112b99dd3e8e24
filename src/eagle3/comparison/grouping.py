"""Runs that differ in nothing but their seed are one variant; what tells variants apart is the table's left half."""

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3.comparison.effective import effective
from eagle3.comparison.figures import EVALUATE
from eagle3.comparison.runs import Run
from eagle3.comparison.variants import REPEATS, Variant

_TOLD_BY = ("target.name", "dataset.name", "nccl.serving.name")
"""Keys from which the others of their group mostly follow: those that do are left away."""


def variants_of(runs: Sequence[Run], stage: str = EVALUATE, named_among: Sequence[Run] = ()) -> list[Variant]:
    """In the order of their first runs.

    Runs that share a measurement are one, with the configuration of the first: what differs between them made no
    difference to what was measured.

    Args:
        stage: whose measurements.
        named_among: where only one variant is left of these, it keeps the name that it has among them.
    """
    configs = _by_measurement(runs, stage)
    keys = differing(list(configs.values()))
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        config = configs[run.measurement(stage)]
        groups.setdefault(tuple(_value(config, key) for key in keys), []).append(run)
    naming = configs
    if len(groups) == 1 and named_among:
        naming = _by_measurement(named_among, stage)
        keys = differing(list(naming.values()))
    told = _telling(keys, list(naming.values()))
    names = _short(told)
    found = []
    for members in groups.values():
        config = configs[members[0].measurement(stage)]
        setting = {names[key]: _readable(_value(config, key)) for key in told}
        if len(groups) == 1:  # no other row of its table has what is blank here
            setting = {name: value for name, value in setting.items() if value}
        found.append(Variant(members, setting, stage))
    return found


def _by_measurement(runs: Sequence[Run], stage: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        found.setdefault(run.measurement(stage), effective(run, stage))
    return found


def _value(config: Mapping[str, Any], key: str) -> str:
    """As it is shown; "" where the key means nothing for this run."""
    return shown(config[key]) if key in config else ""


_FREE = ("server.env", "server.flags.common", "server.flags.extraction", "server.flags.serving", "nccl.serving.env")
"""Dictionaries that hold any key, or none."""


def _has_place(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key that the configuration lacks would mean something for it: what holds it is there, and empty, null,
    or with other keys."""
    parts = key.split(".")
    if any(".".join(parts[:count]) in config for count in range(1, len(parts))):
        return True
    free = next((f"{holder}." for holder in _FREE if key.startswith(f"{holder}.")), None)
    return free is not None and any(other.startswith(free) for other in config)


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all that have them, or could; those that repeat a measurement left out."""
    every = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in every
        if key not in REPEATS
        and len({_value(config, key) for config in configs if key in config or _has_place(config, key)}) > 1
    ]


def _telling(keys: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Without those that follow from another one of their group."""
    kept = []
    for key in keys:
        leader = next((one for one in _TOLD_BY if key.startswith(one.rpartition(".")[0] + ".")), None)
        if leader is None or leader not in keys or key == leader:
            kept.append(key)
            continue
        pairs = {(_value(config, leader), _value(config, key)) for config in configs}
        if len(pairs) > len({pair[0] for pair in pairs}):
            kept.append(key)
    return kept


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or all of it where two end alike; of a name, what it is the name of."""
    leaves = [key.removesuffix(".name") if key.endswith(".name") else key.rsplit(".", 1)[-1] for key in keys]
    return {key: leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)}


def _readable(text: str) -> str:
    """Of a long path its end."""
    return ".../" + "/".join(text.split("/")[-2:]) if text.startswith("/") and text.count("/") > 2 else text


def shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)
