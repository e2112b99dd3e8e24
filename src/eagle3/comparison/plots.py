"""The comparison's pictures, drawn from its table alone."""

import io
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np

from eagle3.comparison.noise import Verdict
from eagle3.comparison.table import Comparison
from eagle3.tracking.plots import BLUE, GREEN, GREY, ORANGE, STYLE, new_figure, thousands

_MOST_LINES = 8
"""Variants whose acceptance is drawn as a line: more can't be told apart."""
_OTHERS = (ORANGE, GREEN, "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", GREY)
"""Colours of what is not the best, from the same palette as the report's."""
_LONGEST = 34
"""Letters of a line of a label."""
TITLE: dict[str, Any] = {"x": 0.01, "ha": "left", "fontsize": 11, "fontweight": "bold"}


def draw(comparison: Comparison) -> dict[str, Any]:
    """{name: figure} of what there are figures for."""
    import matplotlib as mpl

    drawings: dict[str, Callable[[Comparison], Any]] = {
        "accept_length": _accept_length,
        "acceptance": _acceptance,
        "rates": _rates,
    }
    with mpl.rc_context(STYLE):
        return {name: figure for name, one in drawings.items() if (figure := one(comparison)) is not None}


def svg(figure: Any) -> str:
    """The figure as one <svg> element; without the date, so that the same runs give the same page."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "eagle3"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    whole = out.getvalue()
    return whole[whole.index("<svg") :]


def write_pngs(comparison: Comparison, folder: Path) -> list[Path]:
    written = []
    for name, figure in draw(comparison).items():
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=160)
    return written


def _label(text: str) -> str:
    """In two lines at most."""
    return "\n".join(wrap(text, _LONGEST, max_lines=2, placeholder=" ..."))


def _accept_length(comparison: Comparison) -> Any:
    shown = [
        (variant, length, spread, verdict)
        for variant, spread, verdict in zip(comparison.variants, comparison.spreads, comparison.verdicts, strict=True)
        if (length := variant.accept_length(comparison.steps)) is not None
    ]
    if not shown:
        return None
    figure, (axes,) = new_figure(height=1.2 + 0.4 * len(shown))
    at = np.arange(len(shown))[::-1]
    for y, (variant, length, spread, verdict) in zip(at, shown, strict=True):
        colour = BLUE if variant is comparison.best else GREY
        error = 0.0 if spread is None else spread.accept_length
        axes.errorbar(length, y, xerr=error, fmt="o", color=colour, capsize=3)
        each = variant.accept_lengths(comparison.steps)
        if len(each) > 1:
            axes.plot(each, [y] * len(each), "|", color=ORANGE, markersize=9)
        place = {"xy": (1.02, y), "xycoords": ("axes fraction", "data"), "va": "center"}
        axes.annotate("best" if variant is comparison.best else _short(verdict), color=colour, **place)
    axes.set_yticks(at, [_label(variant.label) for variant, *_ in shown])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    figure.suptitle("Accept length", **TITLE)
    axes.set(xlabel="tokens a verification; ± one standard deviation, each seed a stroke")
    return figure


def _short(verdict: Verdict | str) -> str:
    if isinstance(verdict, str):
        return "not compared"
    return f"{verdict.difference:.3f} behind" if verdict.exceeds else "tie"


def _acceptance(comparison: Comparison) -> Any:
    pairs = list(zip(comparison.variants, comparison.spreads, strict=True))
    shown = [(variant, spread) for variant, spread in pairs if variant.steps][:_MOST_LINES]
    if not shown:
        return None
    figure, (axes,) = new_figure(height=3.8)
    for number, (variant, spread) in enumerate(shown):
        shares = 100 * np.asarray(variant.by_step())
        best = variant is comparison.best
        # Side by side, so that their spreads can be told apart.
        x = np.arange(1, len(shares) + 1) + 0.02 * (number - (len(shown) - 1) / 2)
        errors = None if spread is None else 100 * np.asarray(spread.by_step)
        look = (
            {"color": BLUE, "linewidth": 2.6} if best else {"color": _OTHERS[number % len(_OTHERS)], "linewidth": 1.4}
        )
        axes.errorbar(x, shares, yerr=errors, marker="o", capsize=2, label=_label(variant.label), **look)
    axes.set(title="Right when all earlier ones are", xlabel="draft token", ylabel="held-out positions (%)")
    axes.set_xticks(range(1, 1 + max(variant.steps for variant, _ in shown)))
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower center")
    return figure


def _rates(comparison: Comparison) -> Any:
    """Tokens/s of what differs between variants: an extraction that all share tells nothing."""
    panels = []
    for column in comparison.columns:
        each = [
            [value for run in variant.runs if (value := run.figure(column.source)) is not None]
            for variant in comparison.variants
            if column.source is not None
        ]
        if column.title.endswith("tokens/s") and len({tuple(values) for values in each}) > 1:
            panels.append((column, each))
    if not panels:
        return None
    figure, axes = new_figure(len(panels), height=1.2 + 0.4 * len(comparison.variants))
    figure.set_size_inches(max(7.2, 2.0 + 2.6 * len(panels)), figure.get_size_inches()[1])
    at = np.arange(len(comparison.variants))[::-1]
    for index, (panel, (column, each)) in enumerate(zip(axes, panels, strict=True)):
        for y, values in zip(at, each, strict=True):
            if values:
                middle = fmean(values)
                panel.barh(y, middle, color=GREEN, height=0.6)
                panel.plot([min(values), max(values)], [y, y], color="#1C1E21", linewidth=1.2)
                panel.annotate(column.show(middle), (0, y), (4, 0), textcoords="offset points", va="center", color="w")
        panel.set_yticks(at, [_label(v.label) for v in comparison.variants] if index == 0 else [""] * len(at))
        panel.set_xlabel(column.title)
        panel.grid(axis="y", visible=False)
        thousands(panel.xaxis)
    figure.suptitle("Rates, and from the slowest to the fastest run", **TITLE)
    return figure
