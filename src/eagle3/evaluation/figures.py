"""Figures of recorded loads: acceptance, tokens/s, latencies, and the speed-up over no speculation with its spread."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from eagle3.config.schema import DraftSetting
from eagle3.errors import DataError
from eagle3.evaluation.load import Load, Reply
from eagle3.evaluation.prompts import Prompt, ids_of
from eagle3.evaluation.sequences import Sequences
from eagle3.units import counted

NONE, UNTRAINED = "none", "untrained"
"""The server without speculation, and the one whose drafter has random weights."""
FAILED = "serve/failed"
"""In a summary: the servers that failed; `serve/<name>/failure` says why."""
PERCENTILES = (50, 90, 99)


def name_of(draft: DraftSetting) -> str:
    """Of the server that drafts so: steps, topk, draft tokens."""
    return f"s{draft.steps}k{draft.topk}d{draft.tokens}"


def _steps_of(server: str) -> int:
    """Drafts of a pass, one after the other."""
    found = re.match(r"s(\d+)k", server)
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Cell:
    """A server under one temperature and concurrency, over all rounds."""

    server: str
    temperature: float
    concurrency: int
    rate: float
    """tokens/s, the median over rounds."""
    rates: list[float]
    latency_s: dict[int, float]
    """Percentile to seconds of a whole answer."""
    token_s: dict[int, float]
    """Percentile to seconds of a token: an answer's time over its length."""
    accept_length: float
    """Tokens that a pass of the target yields; 1 without speculation."""
    conditional: list[float]
    """Share of draft k accepted where all earlier ones were."""
    by_position: list[float]
    """Share of draft k accepted in all passes."""
    by_set: dict[str, float]
    """Accept length on each prompt set."""
    by_set_speed_ups: dict[str, list[float]]
    """Like `speed_ups`, on each prompt set alone; of one request at a time, where every answer has its own time."""
    speed_up: float
    """Tokens/s over those without speculation in the same round, the median over rounds."""
    speed_ups: list[float]

    @property
    def at(self) -> tuple[float, int]:
        return self.temperature, self.concurrency

    @property
    def spread(self) -> float:
        """Largest less smallest tokens/s of the rounds, over their median."""
        return (max(self.rates) - min(self.rates)) / self.rate

    @property
    def break_even(self) -> float:
        """The accept length at which this setting would gain nothing: passes cost what they cost."""
        return self.accept_length / self.speed_up

    def metrics(self) -> dict[str, float]:
        """`<server>/t<temperature>/c<concurrency>/...`."""
        stage = f"{self.server}/t{self.temperature:g}/c{self.concurrency}"
        found: dict[str, float] = {f"{stage}/tokens_per_s": self.rate}
        found |= {f"{stage}/latency_p{p}_s": value for p, value in self.latency_s.items()}
        found |= {f"{stage}/token_p{p}_ms": value * 1e3 for p, value in self.token_s.items()}
        if self.server == NONE:
            return found
        found |= {f"{stage}/accept_length": self.accept_length, f"{stage}/break_even": self.break_even}
        found |= {f"{stage}/cond_acc_step_{k}": share for k, share in enumerate(self.conditional)}
        found |= {f"{stage}/position_acc_{k}": share for k, share in enumerate(self.by_position)}
        return found | _speed_up(stage, self.speed_ups)


def cells_of(loads: Iterable[Load]) -> list[Cell]:
    """One for each server, temperature and concurrency, in the order in which they came; none of the untrained.

    A speed-up is over the last load of `none` that came before, in the same round: where a round was stopped, what came
    later in it has one of its own.

    Raises DataError where a load lacks that.
    """
    groups: dict[tuple[str, float, int], list[Load]] = {}
    compared: dict[tuple[str, float, int], list[tuple[Load, Load]]] = {}
    without: dict[tuple[int, float, int], Load] = {}
    for load in loads:
        if load.server == UNTRAINED:
            continue
        beside, key = (
            (load.round, load.temperature, load.concurrency),
            (load.server, load.temperature, load.concurrency),
        )
        if load.server == NONE:
            without[beside] = load
        elif beside not in without:
            raise DataError(f"round {load.round} of {load.server} was not measured without speculation before")
        groups.setdefault(key, []).append(load)
        compared.setdefault(key, []).append((load, without[beside]))
    return [_cell(*key, group, compared[key]) for key, group in groups.items()]


def _cell(
    server: str, temperature: float, concurrency: int, loads: list[Load], compared: list[tuple[Load, Load]]
) -> Cell:
    replies = [reply for load in loads for reply in load.replies]
    rates = [load.rate for load in loads]
    speed_ups = [load.rate / none.rate for load, none in compared]
    sets = _sets(replies)
    reached, accepted, passes = _sums(replies, _steps_of(server))
    return Cell(
        server=server,
        temperature=temperature,
        concurrency=concurrency,
        rate=median(rates),
        rates=rates,
        latency_s=_percentiles([reply.seconds for reply in replies]),
        token_s=_percentiles([reply.seconds / max(len(reply.output_ids), 1) for reply in replies]),
        accept_length=accept_length(replies),
        conditional=[a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)],
        by_position=[a / passes if passes else 0.0 for a in accepted],
        by_set={name: accept_length([r for r in replies if r.set == name]) for name in sets},
        by_set_speed_ups={name: [_rate(load, name) / _rate(none, name) for load, none in compared] for name in sets}
        if concurrency == 1
        else {},
        speed_up=median(speed_ups),
        speed_ups=speed_ups,
    )


def _speed_up(stage: str, speed_ups: Sequence[float]) -> dict[str, float]:
    """`<stage>/speedup` (`_min`, `_max`): the median, the smallest and the largest of the rounds."""
    name = f"{stage}/speedup"
    return {name: median(speed_ups), f"{name}_min": min(speed_ups), f"{name}_max": max(speed_ups)}


def _rate(load: Load, name: str) -> float:
    """tokens/s on one prompt set of a load of one request at a time."""
    replies = [reply for reply in load.replies if reply.set == name]
    return sum(len(reply.output_ids) for reply in replies) / sum(reply.seconds for reply in replies)


def accept_length(replies: Sequence[Reply]) -> float:
    """1 + accepted drafts a pass, over all passes; of servers that count no drafts, answer tokens a pass."""
    _, accepted, passes = _sums(replies)
    if passes:
        return 1 + sum(accepted) / passes
    passes = sum(reply.passes for reply in replies)
    # The first token of an answer is the prompt's own pass.
    return sum(len(reply.output_ids) - 1 for reply in replies) / passes if passes else 1.0


def _sums(replies: Sequence[Reply], steps: int = 0) -> tuple[list[int], list[int], int]:
    """(passes whose drafts before k were all accepted, and those where k was too, by k; passes).

    A server's histogram ends with the longest that was accepted; drafts up to `steps` are counted where some were.
    """
    longest = max((len(reply.histogram) for reply in replies), default=0)
    longest = max(longest, steps + 1) if longest else 0
    total = [sum(r.histogram[j] for r in replies if j < len(r.histogram)) for j in range(longest)]
    at_least = [sum(total[j:]) for j in range(longest)]
    return at_least[:-1], at_least[1:], sum(total)


def counts_of_best(cells: Sequence[Cell], loads: Iterable[Load], prompts: Sequence[Prompt]) -> Sequences | None:
    """Passes of each prompt in which draft k was reached, and accepted, over all rounds of the load that `summary_of`
    is of; None where the server counts no drafts."""
    best = best_of(cells, *cells[0].at)
    wanted = (best.server, *best.at)
    asked = [load.replies for load in loads if (load.server, load.temperature, load.concurrency) == wanted]
    if not (steps := len(best.conditional)):
        return None
    each = [_sums([replies[i] for replies in asked], steps) for i in range(len(prompts))]
    reached = [_filled(before, steps) for before, _, _ in each]
    accepted = [_filled(right, steps) for _, right, _ in each]
    return Sequences(ids_of(prompts), np.array(reached), np.array(accepted))


def _filled(counts: list[int], steps: int) -> list[int]:
    return [*counts, *[0] * (steps - len(counts))]


def _percentiles(values: list[float]) -> dict[int, float]:
    return {p: float(np.percentile(values, p)) for p in PERCENTILES}


def _sets(replies: Sequence[Reply]) -> list[str]:
    return list(dict.fromkeys(reply.set for reply in replies))


def best_of(cells: Sequence[Cell], temperature: float, concurrency: int) -> Cell:
    """The setting with the largest speed-up."""
    there = [c for c in cells if c.server != NONE and c.at == (temperature, concurrency)]
    return max(there, key=lambda cell: cell.speed_up)


def so_far(loads: Sequence[Load]) -> str | None:
    """What a stopped evaluation has found, under the first temperature and concurrency; None before any drafts."""
    cells = cells_of(loads)
    found = ", ".join(
        f"{cell.server} {cell.speed_up:.2f}x with accept length {cell.accept_length:.2f} "
        f"({counted(len(cell.rates), 'round')})"
        for cell in cells
        if cell.server != NONE and cell.at == cells[0].at
    )
    return (
        f"so far, {loads[0].concurrency} at a time at temperature {loads[0].temperature:g}: {found}" if found else None
    )


def summary_of(cells: Sequence[Cell]) -> dict[str, Any]:
    """The best setting under the first temperature and concurrency, and `serve/<setting>/...` of every cell.

    What simulation and chain give too is called `eval/...` here as there; what only serving gives, `serve/...`.
    """
    first = cells[0]
    best = best_of(cells, first.temperature, first.concurrency)
    without = next(c for c in cells if (c.server, c.temperature, c.concurrency) == (NONE, *best.at))
    found: dict[str, Any] = {
        "eval/kind": "served",
        "serve/best": best.server,
        **_speed_up("serve", best.speed_ups),
        "eval/accept_length": best.accept_length,
        "serve/break_even": best.break_even,
        "serve/tokens_per_s": best.rate,
        "serve/tokens_per_s_without": without.rate,
    }
    found |= {f"eval/cond_acc_step_{k}": share for k, share in enumerate(best.conditional)}
    found |= {f"eval/{name}/accept_length": length for name, length in best.by_set.items()}
    for name, speed_ups in best.by_set_speed_ups.items():
        found |= _speed_up(f"serve/{name}", speed_ups)
    for cell in cells:
        found |= {f"serve/{name}": value for name, value in cell.metrics().items()}
    return found
