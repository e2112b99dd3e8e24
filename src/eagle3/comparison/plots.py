"""The comparison's pictures, drawn from its table alone."""

import io
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from eagle3.comparison.table import Comparison
from eagle3.tracking.plots import BLUE, GREEN, GREY, ORANGE, STYLE, new_figure

_MOST_LINES = 8
"""Variants whose acceptance is drawn as a line: more can't be told apart."""
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
        (variant, length, spread)
        for variant, spread in zip(comparison.variants, comparison.spreads, strict=True)
        if (length := variant.accept_length(comparison.steps)) is not None
    ]
    if not shown:
        return None
    figure, (axes,) = new_figure(height=1.4 + 0.4 * len(shown))
    at = np.arange(len(shown))[::-1]
    errors = [0.0 if spread is None else spread.accept_length for _, _, spread in shown]
    colours = [BLUE if variant is comparison.best else GREY for variant, _, _ in shown]
    for y, (_, length, _), error, colour in zip(at, shown, errors, colours, strict=True):
        axes.errorbar(length, y, xerr=error, fmt="o", color=colour, capsize=3)
    for y, (variant, _, _) in zip(at, shown, strict=True):
        each = variant.accept_lengths(comparison.steps)
        if len(each) > 1:
            axes.plot(each, [y] * len(each), "|", color=ORANGE, markersize=9)
    axes.set_yticks(at, [_label(variant.label) for variant, _, _ in shown])
    figure.suptitle("Accept length", **TITLE)
    axes.set(xlabel="tokens a verification; ± one standard deviation, each seed a stroke")
    return figure


def _acceptance(comparison: Comparison) -> Any:
    shown = [variant for variant in comparison.variants if variant.steps][:_MOST_LINES]
    if not shown:
        return None
    figure, (axes,) = new_figure(height=3.8)
    for variant in shown:
        shares = 100 * np.asarray(variant.by_step())
        best = variant is comparison.best
        axes.plot(
            range(1, len(shares) + 1), shares, marker="o", label=_label(variant.label), linewidth=2.6 if best else 1.4
        )
    axes.set(title="Right when all earlier ones are", xlabel="draft token", ylabel="held-out positions (%)")
    axes.set_xticks(range(1, 1 + max(variant.steps for variant in shown)))
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center")
    return figure


def _rates(comparison: Comparison) -> Any:
    keys = [column for column in comparison.columns if column.key.endswith("tokens_per_s")]
    if not keys:
        return None
    figure, panels = new_figure(len(keys), height=1.4 + 0.4 * len(comparison.variants))
    at = np.arange(len(comparison.variants))[::-1]
    for index, (axes, column) in enumerate(zip(panels, keys, strict=True)):
        values = [column.value(variant) or 0.0 for variant in comparison.variants]
        axes.barh(at, values, color=GREEN, height=0.6)
        axes.set_yticks(at, [_label(v.label) for v in comparison.variants] if index == 0 else [""] * len(at))
        axes.set_xlabel(column.title)
        axes.grid(axis="y", visible=False)
    return figure
