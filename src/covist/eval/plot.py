"""Retention against budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from covist.eval.variants import VANILLA

if TYPE_CHECKING:
    from covist.eval.results import Results

_MARKERS = "osD^vPX*<>"


def plot_retention(results: Results, path: str | Path) -> None:
    """One line per method with its interval, budgets on a logarithmic axis."""
    figure = Figure(figsize=(7.5, 4.5), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(100, color="0.5", linestyle="--", linewidth=1, label=VANILLA)
    compressed = [score for score in results.scores if score.method != VANILLA]
    for number, method in enumerate(dict.fromkeys(score.method for score in compressed)):
        own = sorted((score for score in compressed if score.method == method), key=lambda score: score.budget)
        budgets = [score.budget for score in own]
        color, marker = f"C{number % 10}", _MARKERS[number % len(_MARKERS)]
        axes.plot(budgets, [score.retention for score in own], color=color, marker=marker, markersize=5, label=method)
        low, high = zip(*(score.retention_interval for score in own), strict=True)
        axes.fill_between(budgets, low, high, color=color, alpha=0.12, linewidth=0)
    if ticks := sorted({score.budget for score in compressed}):
        axes.set_xscale("log", base=2)
        axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
        axes.set_xticks(ticks, labels=list(map(str, ticks)))
    axes.set_xlabel("visual tokens per image (layer mean)")
    axes.set_ylabel("retention (%)")
    axes.set_title(f"{results.suite}: {results.questions} questions about {results.images} images", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))
