"""The panels of figures. Axes are in units of token cells, so a panel has the shape of its view."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import hsv_to_rgb
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from covist.viz.layout import View, outline
from covist.viz.maps import map_colours
from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

GOLDEN = 0.618034
MANY_THREADS = 512
WIDEST_RIM, THICKEST_RIM = 0.6, 0.1  # points; of the diameter, so that small discs keep their colour


def show_image(axes: Axes, view: View, title: str = "", theme: Theme = LIGHT) -> None:
    """A view as the encoder saw it."""
    axes.imshow(view.image, extent=_extent(view), interpolation="nearest")
    _finish(axes, view, title, theme)


def discarded_style(theme: Theme) -> dict[str, Any]:
    """The style of an area without a representative."""
    return {"facecolor": theme.gone, "edgecolor": theme.faint, "hatch": "////", "linewidth": 0.0}


def show_rebuilt(
    axes: Axes, view: View, painted: np.ndarray, discarded: np.ndarray, title: str = "", theme: Theme = LIGHT
) -> None:
    """A view rebuilt from its representatives; hatched where tokens were discarded [n] without a representative."""
    axes.imshow(painted, extent=_extent(view), interpolation="nearest")
    cells = view.cells(discarded[view.holds(discarded)])
    if len(cells):
        loops = [Path(loop + loop[:1], closed=True) for loop in outline(map(tuple, cells.tolist()))]
        axes.add_patch(PathPatch(Path.make_compound_path(*loops), **discarded_style(theme)))
    _finish(axes, view, title, theme)


def show_map(
    axes: Axes, view: View, values: np.ndarray, title: str = "", caption: str = "", theme: Theme = LIGHT
) -> None:
    """An evidence map over all tokens [N], nan for tokens that were already removed. The views share one scale."""
    axes.imshow(map_colours(values, view, theme), extent=_extent(view), interpolation="nearest")
    _finish(axes, view, title, theme)
    axes.set_xlabel(caption, fontsize=7.5, color=theme.soft, labelpad=4, linespacing=1.15)


def show_representatives(
    axes: Axes,
    view: View,
    kept: np.ndarray,
    weights: np.ndarray,
    owner: np.ndarray | None,
    scale: WeightScale,
    cell_points: float,
    title: str = "",
    theme: Theme = LIGHT,
) -> None:
    """Representatives as discs over the faded image, with a line to every token that they stand for."""
    grey = view.image @ np.array([0.299, 0.587, 0.114])
    axes.imshow(grey, extent=_extent(view), cmap=theme.faded, vmin=0, vmax=255, interpolation="bilinear")
    if owner is not None:
        _draw_threads(axes, view, kept, weights, owner, scale)
    here = view.holds(kept)
    order = np.argsort(-weights[here], kind="stable")  # small discs on top of large ones
    centres, sizes = view.centres(kept[here])[order], weights[here][order]
    areas = scale.areas(sizes, cell_points)
    axes.scatter(
        centres[:, 0],
        centres[:, 1],
        s=areas,
        c=scale.colours(sizes),
        edgecolors=theme.rim,
        linewidths=np.minimum(WIDEST_RIM, THICKEST_RIM * np.sqrt(areas)),
        zorder=3,
        clip_on=False,  # a disc at the edge stays whole
    )
    _finish(axes, view, title, theme)


def show_regions(
    axes: Axes, view: View, owner: np.ndarray, kept: np.ndarray, title: str = "", theme: Theme = LIGHT
) -> None:
    """Every token in the colour of its representative; a dot marks the representative itself."""
    rank = np.searchsorted(kept, view.on_grid(owner))  # [rows, columns]
    hues = (rank * GOLDEN) % 1.0  # consecutive representatives, often neighbours, get hues far apart
    light = np.where(rank % 2, *reversed(theme.tints))
    colours = hsv_to_rgb(np.stack([hues, np.full_like(hues, 0.42), light], axis=-1))
    axes.imshow(colours, extent=_extent(view), interpolation="nearest")
    centres = view.centres(kept[view.holds(kept)])
    axes.scatter(centres[:, 0], centres[:, 1], s=9, color=theme.ink, linewidths=0, zorder=3)
    _finish(axes, view, title, theme)


def _draw_threads(
    axes: Axes, view: View, kept: np.ndarray, weights: np.ndarray, owner: np.ndarray, scale: WeightScale
) -> None:
    tokens = np.arange(view.start, view.stop)
    tokens = tokens[view.holds(owner[tokens]) & (owner[tokens] != tokens)]
    if not len(tokens):
        return
    weight_of = dict(zip(kept.tolist(), weights.tolist(), strict=True))
    lines = np.stack([view.centres(tokens), view.centres(owner[tokens])], axis=1)  # [n, 2, 2]
    tints = scale.colours(np.array([weight_of[token] for token in owner[tokens].tolist()]))
    faint = float(np.clip(MANY_THREADS / len(tokens), 0.12, 1.0))  # keeps thousands of lines from hiding the image
    axes.add_collection(
        LineCollection(list(lines), colors=tints, linewidths=0.35 + 0.35 * faint, alpha=0.45 * faint, zorder=2)
    )


def _extent(view: View) -> tuple[float, float, float, float]:
    return (0, view.columns, view.rows, 0)


def _finish(axes: Axes, view: View, title: str, theme: Theme) -> None:
    axes.set_xlim(0, view.columns)
    axes.set_ylim(view.rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(theme.faint)
        spine.set_linewidth(0.6)
    axes.set_title(title, fontsize=9, color=theme.ink, pad=6)
