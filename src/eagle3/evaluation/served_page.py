"""The served figures as a page: first whether it is worth it."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from eagle3.evaluation.figures import FAILED, NONE, Cell, best_of
from eagle3.evaluation.sameness import TIE_NATS, Explained
from eagle3.units import acceptances

UNTRAINED_AT_MOST = 1.1
"""Accept length of random weights, which guess one token in thousands."""
QUIET_AT_MOST = 0.1
"""Spread of a server's own rate over the rounds, on a machine that does nothing else."""


def page(cells: Sequence[Cell], summary: dict[str, Any], explained: Sequence[Explained]) -> str:
    """Markdown; a loss, and answers that are not the target's own, come first."""
    return "\n\n".join(_parts(cells, summary, explained)) + "\n"


def _parts(cells: Sequence[Cell], summary: dict[str, Any], explained: Sequence[Explained]) -> Iterator[str]:
    first = cells[0]
    best = best_of(cells, first.temperature, first.concurrency)
    low, high = min(best.speed_ups), max(best.speed_ups)
    where = f"at concurrency {best.concurrency}, temperature {best.temperature:g}"
    spread = f"{best.speed_up:.2f}x ({low:.2f} to {high:.2f} over {len(best.speed_ups)} rounds)"
    if best.speed_up < 1:
        yield f"**Slower than no speculation: {spread}** {where}, with the best setting measured, {best.server}."
    else:
        yield f"**{spread} the tokens/s of no speculation** {where}, with the best setting measured, {best.server}."
    if FAILED in summary:
        yield "\n".join(_failed(summary, cells))
    if unexplained := [e for e in explained if not e.is_tie]:
        yield (
            f"**{len(unexplained)} greedy answers are not the target's own, and no tie explains them.** Do not serve "
            "this before that is understood: differences.json names them."
        )
    untrained = summary.get("eval/untrained/accept_length")
    if untrained is not None and untrained > UNTRAINED_AT_MOST:
        yield (
            f"**A drafter of random weights has accept length {untrained:.2f} here, and should have 1.0**: "
            "these figures flatter; do not believe them before that is understood."
        )
    if said := _noise(cells, best):
        yield said
    yield (
        f"Accept length {best.accept_length:.2f}{_around(summary)}; it breaks even at {best.break_even:.2f}. "
        f"{_rate(best.rate)} tokens/s against {_rate(summary['serve/tokens_per_s_without'])}. "
        f"The server's captured boundaries were read back while it served: {summary['eval/boundaries_read_back']}."
        + ("" if untrained is None else f" The same drafter with random weights: accept length {untrained:.2f}.")
        + _stopped(summary.get("eval/loads_kept", 0))
    )
    yield _speed(cells)
    yield _acceptance(cells)
    yield _sets([cell for cell in cells if cell.server != NONE and cell.at == best.at], best)
    if "eval/greedy_differences" in summary:
        yield _greedy(summary, explained)


def _around(summary: dict[str, Any]) -> str:
    spread = summary.get("eval/accept_length_spread")
    return "" if spread is None else f" ± {spread:.2f}"


def _failed(summary: dict[str, Any], cells: Sequence[Cell]) -> Iterator[str]:
    """A line for each server that failed; the same command tries them again."""
    names = summary[FAILED].split(", ")
    yield f"**Not measured, or not to the end: {summary[FAILED]}.** The same command tries {_them(names)} again."
    for name in names:
        rounds = max((len(cell.rates) for cell in cells if cell.server == name), default=0)
        before = f" Its figures are those of {rounds} round{'s' * (rounds > 1)}, from before." if rounds else ""
        yield f"- {name}: {summary[f'serve/{name}/failure']}.{before}"


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _noise(cells: Sequence[Cell], best: Cell) -> str:
    """Empty where the rounds agree."""
    said = []
    if min(best.speed_ups) < 1 < max(best.speed_ups):
        said.append("The rounds do not agree whether it is faster.")
    worst = max((cell for cell in cells if cell.server == NONE), key=lambda cell: cell.spread)
    if worst.spread > QUIET_AT_MOST:
        rates = f"{_rate(min(worst.rates))} to {_rate(max(worst.rates))} tokens/s"
        said.append(
            f"The rate without speculation itself varied by {worst.spread:.0%} between rounds ({rates} at concurrency "
            f"{worst.concurrency}, temperature {worst.temperature:g}): the machine is not quiet."
        )
    return " ".join(said)


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.1f}"


def _stopped(kept: int) -> str:
    """Loads of before a stop."""
    if not kept:
        return ""
    return f" The evaluation was stopped after {kept} loads and continued; no speed-up compares loads across that."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _speed(cells: Sequence[Cell]) -> str:
    head = ("temperature", "concurrency", "setting", "tokens/s", "speed-up", "breaks even at", "answer p50/p90/p99 s")
    rows = []
    for cell in sorted(cells, key=lambda c: (c.temperature, c.concurrency)):
        drafts = cell.server != NONE
        is_best = drafts and cell == best_of(cells, cell.temperature, cell.concurrency)
        spread = _spread(cell.speed_ups) if drafts else ""
        rows.append(
            (
                f"{cell.temperature:g}",
                str(cell.concurrency),
                f"**{cell.server}**" if is_best else cell.server,
                _rate(cell.rate),
                spread,
                f"{cell.break_even:.2f}" if drafts else "",
                "/".join(f"{seconds:.2f}" for seconds in cell.latency_s.values()),
            )
        )
    return _table(head, rows) + "\n\nA setting s3k1d4 drafts 3 steps, topk 1, 4 draft tokens; the best ones are bold."


def _acceptance(cells: Sequence[Cell]) -> str:
    drafted = [cell for cell in cells if cell.server != NONE]
    longest = max(len(cell.conditional) for cell in drafted)
    head = ("temperature", "concurrency", "setting", "accept length", *(f"draft {k + 1}" for k in range(longest)))
    rows = []
    for cell in sorted(drafted, key=lambda c: (c.temperature, c.concurrency)):
        shares = acceptances(cell.conditional, 0)
        given = (f"{cell.temperature:g}", str(cell.concurrency), cell.server, f"{cell.accept_length:.2f}")
        rows.append((*given, *shares, *[""] * (longest - len(shares))))
    return _table(head, rows) + "\n\nShares of drafts accepted where all earlier ones of the pass were."


def _sets(cells: Sequence[Cell], best: Cell) -> str:
    """Of each setting, under the load of the headline."""
    timed = bool(best.by_set_speed_ups)
    head = ["prompts", "setting", "accept length", *["speed-up"] * timed]
    rows = []
    for name in best.by_set:
        for cell in cells:
            row = [name, f"**{cell.server}**" if cell == best else cell.server, f"{cell.by_set[name]:.2f}"]
            rows.append([*row, _spread(cell.by_set_speed_ups[name])] if timed else row)
    return _table(head, rows)


def _spread(speed_ups: Sequence[float]) -> str:
    return f"{median(speed_ups):.2f} ({min(speed_ups):.2f} to {max(speed_ups):.2f})"


def _greedy(summary: dict[str, Any], explained: Sequence[Explained]) -> str:
    asked, noise = summary["eval/sequences"], summary["eval/greedy_differences_without"]
    if not explained:
        return f"Greedy answers equal those without speculation, all {asked} of every setting."
    ties = sum(e.is_tie for e in explained)
    return (
        f"Of the greedy answers to {asked} prompts with each setting, {len(explained)} in all leave the target's own; "
        f"in {ties} of them at a tie: asked again, the target finds both tokens as likely as bfloat16 can tell (within "
        f"{TIE_NATS} nats). Without speculation it differs from itself, in another round, in {noise}."
    )
