"""Reads what the stages left (prepare.json, manifest.json, summary.json, metrics.jsonl) as plain figures.

Nothing here imports torch: `eagle3 inspect` must answer at once.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.files.json_file import json_or_empty
from eagle3.metrics import Tail
from eagle3.units import field_text, quantity

TRAINED, UNTRAINED = "trained", "untrained"
FAILURE = "failure.txt"
"""In a run's folder: what ended it, where that was an error."""


@dataclass(frozen=True)
class Series:
    """One metric along its axis."""

    x: list[float]
    y: list[float]

    def __bool__(self) -> bool:
        return bool(self.x)


@dataclass(frozen=True)
class Acceptance:
    """How a drafter does on the held-out conversations; index k is the TTT step (0 drafts the first token)."""

    accept_length: float | None = None
    """1 + acc_0 + acc_0 acc_1 + ... of the conditional acceptances."""
    spread: float | None = None
    """Of the accept length: one standard deviation over draws of what was measured on."""
    accuracy: list[float] = field(default_factory=list)
    """Share of positions whose draft token at step k is the target's."""
    conditional: list[float] = field(default_factory=list)
    """The same among positions where all earlier steps were right."""

    def __bool__(self) -> bool:
        return self.accept_length is not None or bool(self.conditional)

    @property
    def shown(self) -> str:
        """`1.32 ± 0.02`, without the ± where it is not known; "" of nothing."""
        if self.accept_length is None:
            return ""
        return f"{self.accept_length:.2f}" + ("" if self.spread is None else f" ± {self.spread:.2f}")


class Stage:
    """A stage's artifact folder; files are read when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of history, {"time", "step", "values"}, in the order of writing."""
        return [row for row in Tail(self.folder / "metrics.jsonl").rows() if "values" in row]

    @property
    def so_far(self) -> str:
        """Its last progress, `11 of 32 prompts, accept length 1.84`; "" where it told none."""
        told = [row["progress"] for row in Tail(self.folder / "metrics.jsonl").rows() if "progress" in row]
        if not told:
            return ""
        last = dict(told[-1])
        done = f"{quantity(last.pop('done'))} of {quantity(last.pop('total'))} {last.pop('unit', '')}".rstrip()
        return ", ".join([done, *(field_text(name, value) for name, value in last.items())])

    @cached_property
    def seconds(self) -> float | None:
        """About how long it took to make: from inputs.json, written first, to DONE, written last; and at least the time
        over which it reported, where a longer silence (it was stopped and continued) counts as a minute.
        """
        times = [row["time"] for row in Tail(self.folder / "metrics.jsonl").rows() if "time" in row]
        known: list[float] = []
        if len(times) > 1:
            known.append(sum(min(after - before, 60.0) for before, after in pairwise(times)))
        begun, done = self.folder / "inputs.json", self.folder / "DONE"
        if begun.is_file() and done.is_file():
            known.append(done.stat().st_mtime - begun.stat().st_mtime)
        return max(known, default=None)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json; prepare.json or manifest.json of the stages that have those."""
        return next((found for name in _SUMMARIES if (found := json_or_empty(self.folder / name))), {})

    def series(self, metric: str, over: str = "step") -> Series:
        """A metric over the step, over another metric of the same rows, or over "minutes" since the first row.

        A step that was done twice (work after the last checkpoint of a killed trainer) counts once, as last done.
        """
        points: dict[float, float] = {}
        start = self.rows[0]["time"] if self.rows else 0.0
        for row in self.rows:
            values = row["values"]
            value = values.get(metric)
            x = (row["time"] - start) / 60 if over == "minutes" else values.get(over) if "/" in over else row["step"]
            if isinstance(value, int | float) and isinstance(x, int | float):
                points[x] = value
        ordered = sorted(points.items())
        return Series([x for x, _ in ordered], [y for _, y in ordered])


_SUMMARIES = ("summary.json", "prepare.json", "manifest.json")


def acceptance(summary: dict[str, Any], who: str) -> Acceptance:
    """The figures of the trained or the untrained drafter in an evaluation's summary."""
    prefixes = ("eval/", f"eval/{who}/") if who == TRAINED else (f"eval/{who}/",)
    for prefix in prefixes:
        found = Acceptance(
            _number(summary.get(f"{prefix}accept_length")),
            _number(summary.get(f"{prefix}accept_length_spread")),
            _by_step(summary, f"{prefix}acc_step_"),
            _by_step(summary, f"{prefix}cond_acc_step_"),
        )
        if found:
            return found
    return Acceptance()


def training_of(summary: dict[str, Any]) -> str | None:
    """Whether it is known what a given drafter was trained on, in words; None where the summary does not say."""
    if "eval/training_known" not in summary:
        return None
    if not summary["eval/training_known"]:
        return "not known: it may have seen some of what it was asked"
    return f"known; {summary.get('eval/left_out', 0):,} that it had seen were left out"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _by_step(summary: dict[str, Any], prefix: str) -> list[float]:
    found = {
        int(hit[1]): float(value) for name, value in summary.items() if (hit := re.fullmatch(rf"{prefix}(\d+)", name))
    }
    return [found[step] for step in sorted(found)]


def proof_texts(proof: dict[str, Any]) -> list[str]:
    """A line for each round of a manifest's proof: how far the dump is from what the server itself computed."""
    lines = []
    for when, found in proof.items():
        if isinstance(found, dict):
            text = f"{when}: {found.get('sequences', 0):,} sequences, {found.get('tokens', 0):,} tokens"
            if "mean_error" in found:
                text += f"; log-probabilities {found['mean_error']:.2g} nats from the server's in the mean"
            if "max_ratio" in found:
                text += f", at worst {found['max_ratio']:.2g} times what rounding explains"
                text += f" ({found['tolerance_ratio']:g} is let pass)" if "tolerance_ratio" in found else ""
            if "max_decode_error" in found:
                text += f"; decoded tokens {found['max_decode_error']:.2g} nats from prefilled ones in the median"
                text += (
                    f" ({found['tolerance_decode_error']:g} is let pass)" if "tolerance_decode_error" in found else ""
                )
            lines.append(text)
    return lines


def lengths(prepare: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the conversations in a prepare folder: (all but the responses [n], responses [n])."""
    from safetensors import safe_open

    with safe_open(prepare / "prompts.safetensors", framework="numpy") as file:
        offsets, mask = file.get_tensor("offsets"), file.get_tensor("loss_mask")
    whole = np.diff(offsets)
    until = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])[offsets]
    responses = np.diff(until)
    return whole - responses, responses
