"""Runs that differ in nothing but their seed are one variant; what tells variants apart is the table's left half."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eagle3.comparison.noise import (
    Spread,
    Verdict,
    accept_length,
    bootstrap_spread,
    by_seeds,
    by_sequences,
    seeds_spread,
)
from eagle3.comparison.runs import Run, Sequences

SEED = "seed"
REPEATS = (SEED, "bench.round")
"""Keys that repeat a measurement: runs that differ in these alone are one variant."""
_NOT_COMPARED = ("paths.", "tracking.", "replay.", "sweep.", "name", "mode", "until", "server.port", "server.host")
"""Keys (or their beginnings) that say where and how, not what."""
_TOLD_BY = ("target.name", "dataset.name", "layers.boundaries", "nccl.extraction.name", "nccl.serving.name")
"""Keys from which the others of their group mostly follow: those that do are left away."""


@dataclass
class Variant:
    """Runs of one configuration; one for each seed."""

    runs: list[Run]
    setting: dict[str, str] = field(default_factory=dict)
    """What differs from other variants: shortened key -> value."""

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.setting.items()) or self.runs[0].folder.name

    @property
    def folders(self) -> list[Path]:
        return [run.folder for run in self.runs]

    @cached_property
    def distinct(self) -> list[Run]:
        """One run for each seed: a run that was repeated tells nothing of the noise."""
        return list({tuple(run.config.get(key) for key in REPEATS): run for run in self.runs}.values())

    @cached_property
    def conditional(self) -> np.ndarray:
        """[seeds, steps]; no seed where nothing was evaluated."""
        found = [run.conditional for run in self.distinct if run.conditional]
        return np.array(found) if found else np.zeros((0, 0))

    @property
    def steps(self) -> int:
        return self.conditional.shape[1]

    def by_step(self) -> list[float]:
        return self.conditional.mean(0).tolist() if len(self.conditional) else []

    def accept_lengths(self, steps: int) -> list[float]:
        """Of each seed, with that many drafted tokens."""
        return accept_length(self.conditional[:, :steps]).tolist() if len(self.conditional) else []

    def accept_length(self, steps: int) -> float | None:
        found = self.accept_lengths(steps)
        return fmean(found) if found else None

    @cached_property
    def pooled(self) -> Sequences | None:
        """All seeds' counts on each held-out sequence; None unless all were measured on the same."""
        parts = [run.sequences for run in self.distinct]
        first = parts[0]
        if first is None or not len(first.ids) or len({run.measured_on for run in self.runs}) > 1:
            return None
        known = [part for part in parts if part is not None]
        return Sequences(first.ids, sum(p.reached for p in known), sum(p.accepted for p in known))  # type: ignore[arg-type]

    def spread(self, steps: int) -> Spread | None:
        """Of each step, and of the accept length with `steps` drafted tokens.

        Over the seeds where there are several, else over the held-out sequences.
        """
        if len(self.conditional) > 1:
            return seeds_spread(self.conditional, steps)
        return bootstrap_spread(self.pooled, steps) if self.pooled is not None and self.steps else None

    def figure(self, name: str) -> float | None:
        """Mean over the seeds of a figure of the runs' summaries."""
        found = [value for run in self.runs if (value := run.figure(name)) is not None]
        return fmean(found) if found else None


def judge(ours: Variant, theirs: Variant, steps: int) -> Verdict | str:
    """How far ours is ahead; or why that can't be said."""
    mine, other = ours.accept_lengths(steps), theirs.accept_lengths(steps)
    if not mine or not other:
        return "not evaluated"
    if len({run.measured_on for run in [*ours.runs, *theirs.runs]}) > 1:
        return "measured on other conversations, in another way or for another target"
    if len(mine) > 1 and len(other) > 1:
        return by_seeds(mine, other)
    a, b = ours.pooled, theirs.pooled
    if a is None or b is None:
        return "one run each, and no figures by sequence: evaluate again, or add seeds"
    return by_sequences(a, b, steps)


def variants_of(runs: Sequence[Run]) -> list[Variant]:
    """In the order of their first runs. Two runs of one seed and configuration (a replay) count as two."""
    keys = differing([run.config for run in runs])
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(shown(run.config.get(key)) for key in keys), []).append(run)
    told = _telling(keys, [run.config for run in runs])
    names = _short(told)
    return [
        Variant(members, {names[key]: _readable(members[0].config.get(key)) for key in told})
        for members in groups.values()
    ]


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that say what is made, and whose values are not the same in all that have them.

    One that only newer runs have, all with the same value, tells nothing: it had no name before.
    """
    every = dict.fromkeys(key for config in configs for key in config)
    kept = [key for key in every if key not in REPEATS and not key.startswith(_NOT_COMPARED)]
    return [key for key in kept if len({shown(config[key]) for config in configs if key in config}) > 1]


def _telling(keys: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Without those that follow from another one of their group."""
    kept = []
    for key in keys:
        leader = next((one for one in _TOLD_BY if key.startswith(one.rpartition(".")[0] + ".")), None)
        if leader is None or leader not in keys or key == leader:
            kept.append(key)
            continue
        pairs = {(shown(config.get(leader)), shown(config.get(key))) for config in configs}
        if len(pairs) > len({pair[0] for pair in pairs}):
            kept.append(key)
    return kept


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or all of it where two end alike; of a name, what it is the name of."""
    leaves = [key.removesuffix(".name") if key.endswith(".name") else key.rsplit(".", 1)[-1] for key in keys]
    return {key: leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(keys, leaves, strict=True)}


def _readable(value: Any) -> str:
    """As `shown`; of a long path its end."""
    text = shown(value)
    return ".../" + "/".join(text.split("/")[-2:]) if text.startswith("/") and text.count("/") > 2 else text


def shown(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)
