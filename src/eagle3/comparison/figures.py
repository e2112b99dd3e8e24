"""The figures by which runs are ranked, and how each is shown: one format for a sweep's table and a comparison."""

import re
from collections.abc import Iterable

EVALUATE, BENCH = "evaluate", "bench"
"""Stages whose artifacts hold measurements: of a drafter, and of the served target."""
_EVALUATED = {
    "eval/accept_length": "accept length",
    "serve/speedup": "served speed-up",
    "serve/tokens_per_s": "served, tokens/s",
}
_DECODE = re.compile(r"bench/decode_(\d+)")
_PREFILL = "bench/prefill"


def figures_in(names: Iterable[str]) -> dict[str, str]:
    """{name in report/summary.json: title} of those that rank, in the order shown; more is better in each."""
    there = set(names)
    streams = sorted(int(hit[1]) for name in there if (hit := _DECODE.fullmatch(name)))
    decoding = {f"bench/decode_{count}": f"serving: decode {count}, tokens/s" for count in streams}
    known = {**_EVALUATED, **decoding, _PREFILL: "extraction: prefill, tokens/s"}
    return {name: title for name, title in known.items() if name in there}


def stage_of(figure: str) -> str:
    """The stage whose artifact it was measured of."""
    return BENCH if figure.startswith("bench/") else EVALUATE


def show(figure: str, value: float) -> str:
    """1.067 of an accept length, 1.25x of a speed-up, 152.6 or 6,055 of tokens/s."""
    if figure == "eval/accept_length":
        return f"{value:.3f}"
    return f"{value:.2f}x" if figure == "serve/speedup" else rate(value)


def rate(value: float) -> str:
    """Of tokens/s: 152.6, and 6,055 where tenths tell nothing."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def show_spread(figure: str, mean: float, spread: float | None) -> str:
    """`152.6 ± 2.9`; without the ± where it is not known."""
    if spread is None:
        return show(figure, mean)
    if figure in ("eval/accept_length", "serve/speedup"):
        return f"{show(figure, mean)} ± {spread:.{3 if figure == 'eval/accept_length' else 2}f}"
    return f"{rate(mean)} ± {spread:,.{0 if abs(mean) >= 1000 else 1}f}"
