"""The comparison's pictures, drawn from its table alone."""

import io
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np

from eagle3.comparison.figures import rate
from eagle3.comparison.groups import Group
from eagle3.comparison.noise import Verdict, is_equal
from eagle3.comparison.runs import SIMULATED
from eagle3.comparison.table import Comparison
from eagle3.comparison.variants import Variant
from eagle3.tracking.plots import BLUE, GREEN, GREY, ORANGE, STYLE, new_figure, thousands

_MOST_LINES = 8
"""Variants whose acceptance is drawn as a line: more can't be told apart."""
_OTHERS = (ORANGE, GREEN, "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", GREY)
"""Colours of what is not the best, from the same palette as the report's."""
_LONGEST, _LONGEST_IN_LEGEND = 34, 88
"""Letters of a line of a label."""
TITLE: dict[str, Any] = {"x": 0.01, "ha": "left", "fontsize": 11, "fontweight": "bold"}


_Draw = Callable[[Group], Any]
_Bar = tuple[float, float, float]
"""Mean, smallest and largest."""


def draw(comparison: Comparison) -> dict[str, Any]:
    """{name: figure} of what there are figures for, of each group."""
    import matplotlib as mpl

    drafters: dict[str, _Draw] = {"accept_length": _accept_length, "acceptance": _acceptance, "rates": _rates}
    target: dict[str, _Draw] = {"served": _served}
    drawn: dict[str, Any] = {}
    with mpl.rc_context(STYLE):
        for group in comparison.groups:
            for name, one in (target if group.of_the_target else drafters).items():
                if (figure := one(group)) is not None:
                    drawn[f"{name}_{group.slug}" if group.slug else name] = figure
    return drawn


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


def _label(text: str, longest: int = _LONGEST) -> str:
    """In two lines at most."""
    return "\n".join(wrap(text, longest, max_lines=2, placeholder=" ..."))


def _accept_length(group: Group) -> Any:
    places = [place for variant in group.variants if (place := group.place(variant)) is not None]
    if not places:
        return None
    figure, (axes,) = new_figure(height=1.2 + 0.4 * len(places))
    at = np.arange(len(places))[::-1]
    several = False
    for y, place in zip(at, places, strict=True):
        best = place.variant is group.best
        colour = BLUE if best else GREY
        axes.errorbar(place.mean, y, xerr=place.spread or 0.0, fmt="o", color=colour, capsize=3)
        each = place.variant.accept_lengths()
        if len(each) > 1:
            several = True
            axes.plot(each, [y] * len(each), "|", color=ORANGE, markersize=9)
        where = {"xy": (1.02, y), "xycoords": ("axes fraction", "data"), "va": "center"}
        if len(places) > 1:
            axes.annotate("best" if best else _short(place.verdict), color=colour, **where)
    axes.set_yticks(at, [_label(place.variant.label) for place in places])
    axes.set_ylim(-0.6, len(places) - 0.4)
    figure.suptitle(_titled("Accept length", group), **TITLE)
    strokes = ", each seed a stroke" if several else ""
    axes.set(xlabel=f"tokens a verification; ± one standard deviation{strokes}")
    return figure


def _titled(title: str, group: Group) -> str:
    """With how it was measured, where others were measured in another way."""
    return _label(f"{title}: {group.measured}", _LONGEST_IN_LEGEND) if group.slug else title


def _short(verdict: Verdict | str) -> str:
    if isinstance(verdict, str):
        return "not known"
    if verdict.exceeds:
        return f"{verdict.difference:.3f} behind"
    return "equal" if is_equal(verdict.difference) else "tie"


def _acceptance(group: Group) -> Any:
    shown = [(variant, variant.spread) for variant in group.variants if variant.steps][:_MOST_LINES]
    if not shown:
        return None
    # The legend below it takes its room from the figure.
    labels = [_label(variant.label, _LONGEST_IN_LEGEND) for variant, _ in shown]
    lines = sum(label.count("\n") + 1 for label in labels)
    figure, (axes,) = new_figure(height=3.4 + 0.22 * lines)
    for number, (variant, spread) in enumerate(shown):
        shares = 100 * np.asarray(variant.by_step())
        best = variant is group.best
        # Side by side, so that their spreads can be told apart.
        x = np.arange(1, len(shares) + 1) + 0.02 * (number - (len(shown) - 1) / 2)
        errors = None if spread is None else 100 * np.asarray(spread.by_step)
        look = (
            {"color": BLUE, "linewidth": 2.6} if best else {"color": _OTHERS[number % len(_OTHERS)], "linewidth": 1.4}
        )
        axes.errorbar(x, shares, yerr=errors, marker="o", capsize=2, label=labels[number], **look)
    scored = "held-out positions (%)" if group.way.kind == SIMULATED else "drafts (%)"
    axes.set(title=_titled("Right when all earlier ones are", group), xlabel="draft token", ylabel=scored)
    axes.set_xticks(range(1, 1 + max(variant.steps for variant, _ in shown)))
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower center")
    return figure


def _rates(group: Group) -> Any:
    """Tokens/s of what differs between drafters: an extraction that all share tells nothing."""
    panels: list[tuple[str, list[_Bar | None]]] = []
    for column in group.columns:
        if column.source is None or not column.title.endswith("tokens/s"):
            continue
        each = [variant.values(column.source) for variant in group.variants]
        if any(any(values) for values in each) and len({tuple(values) for values in each}) > 1:
            panels.append((column.title, [_bar(values) for values in each]))
    return _bars(group, panels, "the slowest to the fastest run")


def _served(group: Group) -> Any:
    """Decoding and prefill of the served target under each configuration."""
    several = any(len(variant.values(r.figure)) > 1 for variant in group.variants for r in group.rankings)

    def bar(variant: Variant, figure: str) -> _Bar | None:
        """Of the rounds; of the repeats where there is one round each."""
        return _bar(variant.values(figure), None if several else variant.reach(figure))

    panels = [(r.title, [bar(variant, r.figure) for variant in group.variants]) for r in group.rankings]
    return _bars(group, panels, f"the slowest to the fastest {'round' if several else 'repeat'}")


def _bar(values: list[float], ends: tuple[float, float] | None = None) -> _Bar | None:
    return (fmean(values), *(ends or (min(values), max(values)))) if values else None


def _bars(group: Group, panels: list[tuple[str, list[_Bar | None]]], span: str) -> Any:
    """A panel for each rate, a bar for each row. None without panels."""
    if not panels:
        return None
    labels = [variant.label for variant in group.variants]
    figure, axes = new_figure(len(panels), height=1.2 + 0.4 * len(labels))
    figure.set_size_inches(max(7.2, 3.4 + 2.6 * len(panels)), figure.get_size_inches()[1])
    at = np.arange(len(labels))[::-1]
    for index, (panel, (title, each)) in enumerate(zip(axes, panels, strict=True)):
        for y, bar in zip(at, each, strict=True):
            if bar is not None:
                middle, low, high = bar
                panel.barh(y, middle, color=GREEN, height=0.6)
                panel.plot([low, high], [y, y], color="#1C1E21", linewidth=1.2)
                panel.annotate(rate(middle), (0, y), (4, 0), textcoords="offset points", va="center", color="w")
        panel.set_yticks(at, [_label(label) for label in labels] if index == 0 else [""] * len(at))
        panel.set_xlabel(title)
        panel.grid(axis="y", visible=False)
        thousands(panel.xaxis, most=4)
    figure.suptitle(_titled(f"Rates, and from {span}", group), **TITLE)
    return figure
