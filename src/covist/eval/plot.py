"""Retention against budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from covist.methods.grammar import VANILLA

if TYPE_CHECKING:
    from covist.eval.results import Results

_MARKERS = "osD^vPX*<>"


def plot_retention(results: Results, path: str | Path) -> None:
    """One line per method with its intervals, over the tokens it really kept, on a logarithmic axis."""
    compressed = [score for score in results.scores if score.method != VANILLA]
    methods = list(dict.fromkeys(score.method for score in compressed))
    # tall enough for the legend; names are in no other place of the figure
    figure = Figure(figsize=(7.5, max(4.5, 0.19 * len(methods) + 0.8)), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(100, color="0.5", linestyle="--", linewidth=1, label=VANILLA)
    for number, method in enumerate(methods):
        own = sorted((score for score in compressed if score.method == method), key=lambda score: score.mean_tokens)
        retention = [score.retention for score in own]
        low, high = zip(*(score.retention_interval for score in own), strict=True)
        reach = [
            [a - b for a, b in zip(retention, low, strict=True)],
            [a - b for a, b in zip(high, retention, strict=True)],
        ]
        axes.errorbar(
            [score.mean_tokens for score in own],
            retention,
            reach,
            label=method,
            color=f"C{number % 10}",
            marker=_MARKERS[number // 10 % len(_MARKERS)],
            markersize=4,
            linewidth=1.2,
            elinewidth=0.7,
        )
    if ticks := sorted({score.budget for score in compressed}):
        axes.set_xscale("log", base=2)
        kept = [score.mean_tokens for score in compressed]
        axes.set_xlim(min(kept) / 1.15, max(kept) * 1.15)
        axes.set_xticks(ticks, labels=list(map(str, ticks)))
    axes.set_xlabel("visual tokens per image (layer mean)")
    axes.set_ylabel("retention (%)")
    axes.set_title(f"{results.suite}: {results.questions} questions about {results.images} images", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))
