"""A row of a comparison: the runs of one configuration, their figures, and how two rows compare."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from eagle3.comparison.figures import EVALUATE
from eagle3.comparison.noise import (
    Spread,
    Verdict,
    bootstrap_spread,
    by_seeds,
    by_sequences,
    seeds_spread,
)
from eagle3.comparison.runs import CHAIN, SERVED, Run
from eagle3.evaluation.sequences import Sequences, accept_length
from eagle3.units import counted

SEED = "seed"
REPEATS = (SEED, "bench.round")
"""Keys that repeat a measurement: runs that differ in these alone are one variant."""


@dataclass
class Variant:
    """Runs of one configuration: of all seeds, and of several runs that share one measurement."""

    runs: list[Run]
    setting: dict[str, str] = field(default_factory=dict)
    """What differs from other variants: shortened key -> value."""
    stage: str = EVALUATE
    """Whose measurements are compared: of drafters, or (bench) of the served target."""

    @property
    def label(self) -> str:
        told = [f"{name}={value}" for name, value in self.setting.items() if value]
        if told:
            return ", ".join(told)
        first, *others = ([item for item in run.varied if item.split("=")[0] not in REPEATS] for run in self.runs)
        common = [item for item in first if all(item in other for other in others)]
        # What they differ in made no difference: none of them is named for it.
        return ", ".join(common) or (counted(len(self.runs), "run") if len(self.runs) > 1 else self.runs[0].folder.name)

    @property
    def folders(self) -> list[Path]:
        return [run.folder for run in self.runs]

    @cached_property
    def distinct(self) -> list[Run]:
        """One run for each measurement, and of drafters one for each seed: the rest tells nothing of the noise."""
        found: dict[object, Run] = {}
        for run in self.runs:
            found.setdefault(run.measurement(self.stage), run)
        if self.stage != EVALUATE:
            return list(found.values())
        seeds: dict[object, Run] = {}
        for run in found.values():
            seeds.setdefault(run.config.get(SEED), run)
        return list(seeds.values())

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

    def accept_lengths(self, steps: int | None = None) -> list[float]:
        """Of each seed, with that many drafted tokens; with all that it drafts, as it is served, by default."""
        return accept_length(self.conditional[:, :steps]).tolist() if len(self.conditional) else []

    def accept_length(self, steps: int | None = None) -> float | None:
        found = self.accept_lengths(steps)
        return fmean(found) if found else None

    @cached_property
    def pooled(self) -> Sequences | None:
        """All seeds' counts on each held-out sequence, which all were measured on; None of less than two sequences."""
        parts = [run.sequences for run in self.distinct]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or len(known[0].ids) < 2:
            return None
        return Sequences(known[0].ids, sum(p.reached for p in known), sum(p.accepted for p in known))  # type: ignore[arg-type]

    @property
    def asked(self) -> str:
        """What was measured on."""
        return "prompts" if self.runs[0].kind in (CHAIN, SERVED) else "conversations"

    @cached_property
    def spread(self) -> Spread | None:
        """Of each step, and of the accept length.

        Over the seeds where there are several, else over the held-out sequences.
        """
        if len(self.conditional) > 1:
            return seeds_spread(self.conditional)
        return bootstrap_spread(self.pooled, self.asked) if self.pooled is not None and self.steps else None

    def figure(self, name: str) -> float | None:
        """Mean over the measurements of a figure of the runs' summaries."""
        found = self.values(name)
        return fmean(found) if found else None

    def values(self, name: str) -> list[float]:
        """A figure of each measurement."""
        return [value for run in self.distinct if (value := run.figure(name)) is not None]

    def reach(self, name: str) -> tuple[float, float] | None:
        """Smallest and largest repeat of a figure over the measurements; None where those are not known."""
        ends = self.values(f"{name}/smallest"), self.values(f"{name}/largest")
        return (min(ends[0]), max(ends[1])) if all(ends) else None

    def deviation(self, name: str) -> float | None:
        """One standard deviation of a figure over the measurements; None of a single one."""
        found = self.values(name)
        return stdev(found) if len(found) > 1 else None


def judge(ours: Variant, theirs: Variant) -> Verdict | str:
    """How far ours is ahead in accept length, each with all the tokens that it drafts; or why that can't be said.

    Both were measured alike.
    """
    mine, other = ours.accept_lengths(), theirs.accept_lengths()
    if len(mine) > 1 and len(other) > 1:
        return by_seeds(mine, other)
    a, b = ours.pooled, theirs.pooled
    if a is None or b is None:
        return "one run each, and no figures by conversation: add seeds"
    return by_sequences(a, b, ours.asked)
