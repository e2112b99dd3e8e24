"""The report's pictures, from the stages' files alone, in colours that colour-blind readers tell apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eagle3.tracking.results import TRAINED, UNTRAINED, Series, Stage, acceptance, lengths

# Okabe and Ito's palette: https://jfly.uni-koeln.de/color/
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8A8F98"
STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#5A5F68",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def write_plots(stages: dict[str, Path], out: Path) -> list[Path]:
    """Draws what the given stages (name -> artifact folder) allow; returns the PNG files, in the report's order."""
    import matplotlib as mpl

    out.mkdir(parents=True, exist_ok=True)
    found = {name: Stage(folder) for name, folder in stages.items()}
    drawings: dict[str, Callable[[dict[str, Stage]], Any]] = {
        "acceptance": _acceptance,
        "accept_length": _accept_length,
        "loss": _loss,
        "lengths": _lengths,
        "throughput": _throughput,
    }
    written = []
    with mpl.rc_context(STYLE):
        for name, draw in drawings.items():
            figure = draw(found)
            if figure is not None:
                path = out / f"{name}.png"
                figure.savefig(path)
                written.append(path)
    return written


def new_figure(panels: int = 1, height: float = 3.4) -> tuple[Any, list[Any]]:
    """A figure without pyplot: no global state, no display, nothing to close."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2 if panels == 1 else 9.6, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def thousands(axis: Any, most: int = 6) -> None:
    """Whole numbers with separators on an axis, `most` of them and one."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _smooth(values: list[float], share: float = 0.05) -> np.ndarray:
    """A centred running mean over `share` of the points; its window shrinks at the ends instead of padding them."""
    y = np.asarray(values, dtype=float)
    half = int(len(y) * share / 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    low = np.clip(np.arange(len(y)) - half, 0, None)
    high = np.clip(np.arange(len(y)) + half + 1, None, len(y))
    return (total[high] - total[low]) / (high - low)


def _noisy_line(axes: Any, line: Series, colour: str, label: str) -> None:
    if len(line.x) < 40:
        axes.plot(line.x, line.y, color=colour, label=label, marker="o", markersize=3)
        return
    axes.plot(line.x, line.y, color=colour, alpha=0.25, linewidth=0.8)
    axes.plot(line.x, _smooth(line.y), color=colour, label=label)


def _loss(stages: dict[str, Stage]) -> Any:
    train = stages.get("train")
    loss = train.series("train/loss") if train else None
    if not train or not loss:
        return None
    figure, (axes,) = new_figure()
    _noisy_line(axes, loss, BLUE, "training")
    held_out = train.series("val/loss")
    if held_out:
        axes.plot(held_out.x, held_out.y, color=ORANGE, marker="o", markersize=4, label="held out")
    axes.set(title="Loss", xlabel="optimiser step", ylabel="loss (nats, weighted over draft steps)")
    thousands(axes.xaxis)
    axes.legend()
    return figure


def _acceptance(stages: dict[str, Stage]) -> Any:
    evaluate = stages.get("evaluate")
    if not evaluate:
        return None
    drafters = [(who, acceptance(evaluate.summary, who)) for who in (UNTRAINED, TRAINED)]
    drafters = [(who, found) for who, found in drafters if found.conditional]
    if not drafters:
        return None
    figure, panels = new_figure(2, height=3.8)
    titles = ("Right when all earlier ones are (acceptance)", "Right in any case (accuracy)")
    for axes, title, name in zip(panels, titles, ("conditional", "accuracy"), strict=True):
        width = 0.8 / len(drafters)
        for index, (who, found) in enumerate(drafters):
            shares = 100 * np.asarray(getattr(found, name))
            at = np.arange(1, len(shares) + 1) + (index - (len(drafters) - 1) / 2) * width
            tau = f", accept length {found.accept_length:.2f}" if found.accept_length is not None else ""
            colour = BLUE if who == TRAINED else GREY
            bars = axes.bar(at, shares, width * 0.92, color=colour, label=f"{who}{tau}")
            axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
        axes.set(title=title, xlabel="draft token", ylabel="held-out positions (%)", ylim=(0, 108))
        axes.set_xticks(range(1, 1 + max(len(found.conditional) for _, found in drafters)))
        axes.grid(axis="x", visible=False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(drafters))
    return figure


def _accept_length(stages: dict[str, Stage]) -> Any:
    train = stages.get("train")
    line = train.series("val/accept_length") if train else None
    if not train or not line:
        return None
    figure, (axes,) = new_figure()
    by_epoch = train.series("val/accept_length", over="val/epoch")
    whole = len(by_epoch.x) == len(line.x)
    line = by_epoch if whole else line
    axes.plot(line.x, line.y, color=BLUE, marker="o", label="while training")
    best = int(np.argmax(line.y))
    axes.annotate(f"{line.y[best]:.2f}", (line.x[best], line.y[best]), (0, 7), textcoords="offset points", ha="center")
    if (evaluate := stages.get("evaluate")) and (before := acceptance(evaluate.summary, UNTRAINED).accept_length):
        axes.axhline(before, color=GREY, linestyle="--", label=f"untrained: {before:.2f}")
    axes.set(
        title="Simulated accept length on held-out conversations",
        xlabel="epoch" if whole else "optimiser step",
        ylabel="tokens a verification",
    )
    thousands(axes.xaxis)
    axes.margins(y=0.2)
    axes.legend()
    return figure


def _lengths(stages: dict[str, Stage]) -> Any:
    prepare = stages.get("prepare")
    if not prepare or not (prepare.folder / "prompts.safetensors").is_file():
        return None
    prompts, responses = lengths(prepare.folder)
    if not len(prompts):
        return None
    figure, (axes,) = new_figure()
    bins = np.histogram_bin_edges(np.concatenate([prompts, responses]), bins=40)
    for values, colour, name in ((prompts, ORANGE, "prompt and template"), (responses, BLUE, "response")):
        label = f"{name}: median {np.median(values):,.0f}, longest {values.max():,}, {values.sum():,} in all"
        axes.hist(values, bins=bins, color=colour, alpha=0.3)
        axes.hist(values, bins=bins, color=colour, histtype="step", linewidth=1.6, label=label)
    axes.set(title=f"Tokens of {len(prompts):,} conversations", xlabel="tokens a conversation", ylabel="conversations")
    thousands(axes.xaxis)
    thousands(axes.yaxis)
    figure.legend(loc="outside lower center")
    return figure


def _from_first(line: Series) -> Series:
    """Without the zeros at the beginning: reports made before there was anything to measure a rate by. Empty where
    that never came, in a stage that was too short.
    """
    start = next((i for i, y in enumerate(line.y) if y > 0), len(line.y))
    return Series(line.x[start:], line.y[start:])


def _throughput(stages: dict[str, Stage]) -> Any:
    lines = []
    for name, metric, title in (
        ("extract", "extract/tokens_per_s", "Extraction"),
        ("train", "train/tokens_per_s", "Training"),
    ):
        if (stage := stages.get(name)) and (line := _from_first(stage.series(metric, over="minutes"))):
            lines.append((title, line))
    if not lines:
        return None
    figure, panels = new_figure(len(lines), height=3.2)
    for axes, (title, line), colour in zip(panels, lines, (GREEN, BLUE), strict=False):
        short = line.x[-1] < 3
        x = [60 * minutes for minutes in line.x] if short else line.x
        _noisy_line(axes, Series(x, line.y), colour, title)
        median = float(np.median(line.y))
        axes.axhline(median, color=GREY, linestyle="--", linewidth=1)
        axes.set(
            title=f"{title}: median {median:,.0f} tokens/s",
            xlabel="time (s)" if short else "time (min)",
            ylabel="tokens/s",
        )
        axes.set_ylim(0, max(line.y) * 1.15)
        thousands(axes.yaxis)
    return figure
