"""One stage of an image as an SVG that reacts to the pointer by CSS, without scripts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace
from io import BytesIO

import numpy as np
from PIL import Image
from torch import Tensor

from covist.report.stages import ImageReport
from covist.units import counted
from covist.viz.layout import Corner, View, arrange, outline, owners, rebuilt
from covist.viz.weights import WeightScale

VIEW_GAP = 1  # cells between the views of an image
NARROWEST_DISC, WIDEST_DISC = 0.12, 0.46  # radii in cells: a disc can be seen and never leaves its token
NOTE_LETTERS = 46  # letters of a note that fit the width of a panel
TALL = 1.4  # height over width above which a page narrows a panel
JPEG_QUALITY = 85

Place = tuple[View, int, int]
"""A view, and the column and row of the panel at which it begins."""


def stack(views: list[View]) -> list[Place]:
    """The views of an image below each other; all have cells of the same size."""
    starts = np.cumsum([0, *(view.rows + VIEW_GAP for view in views[:-1])])
    return [(view, 0, top) for view, top in zip(views, starts.tolist(), strict=True)]


def spread(frames: list[View]) -> list[Place]:
    """The frames of a video in lines, from left to right."""
    rows, columns = frames[0].rows, frames[0].columns
    across = arrange(len(frames), columns, rows)
    lines = (divmod(number, across) for number in range(len(frames)))
    return [
        (view, column * (columns + VIEW_GAP), line * (rows + VIEW_GAP))
        for view, (line, column) in zip(frames, lines, strict=True)
    ]


def image_data(view: View) -> str:
    """A view as a data URL."""
    return _data_address(view.image, "jpeg", quality=JPEG_QUALITY)


def pixel_data(pixels: np.ndarray) -> str:
    """Pixels [rows, columns, 3] as a lossless data URL."""
    return _data_address(pixels, "png")


def _data_address(pixels: np.ndarray, kind: str, **options: int) -> str:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{b64encode(buffer.getvalue()).decode()}"


def define_images(views: list[View], name: str) -> str:
    """The images of all views and the hatching, defined once; the panels of all stages refer to them by `name`."""
    images = "".join(_image(view, f'id="{name}-{number}"') for number, view in enumerate(views))
    hatching = (
        f'<pattern id="{name}-gone" width=".5" height=".5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width=".5" height=".5" fill="#eef0f3" fill-opacity=".8"/>'
        '<rect width=".1" height=".5" fill="#7d8590"/></pattern>'
    )
    return (
        f'<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>{images}{hatching}</defs></svg>'
    )


def _image(view: View, attributes: str) -> str:
    size = f'width="{view.columns}" height="{view.rows}" preserveAspectRatio="none"'
    return f'<image {attributes} {size} href="{image_data(view)}"/>'


def draw_panel(image: ImageReport, views: list[View], stage: int, scale: WeightScale, name: str) -> str:
    """The representatives of one stage over the image.

    Each is a group with a title: its region, which covers the tokens it stands for, its disc, and a note that is shown
    while the pointer is on either. Every token is in exactly one group or in the discarded area.
    """
    placed = spread(views) if image.is_video else stack(views)
    width, height = _size(placed)
    line = max(width, height / TALL) * 1.75 / NOTE_LETTERS  # in cells
    groups = "".join(_representatives(image, placed, stage, owners(image, stage), scale, height + line))
    drawn = (
        f'{_uses(placed, name)}{_discarded(image, placed, stage, name)}<g class="all">{groups}</g>'
        f'<text class="hint" y="{height + line:.4g}">Point at a representative.</text>'
    )
    label = f"{image.describe_stage(stage)} kept of {image.tokens}"
    return _panel(placed, drawn, label, below=2.3 * line, style=f"font-size:{line * 0.88:.3g}px")


def draw_seen(views: list[View], name: str) -> str:
    """The image as the encoder sees it."""
    return _panel(stack(views), _uses(stack(views), name), "the image as the encoder sees it")


def draw_rebuilt(image: ImageReport, views: list[View], stage: int, name: str) -> str:
    """The image rebuilt from the representatives of one stage; hatched where none stands for it."""
    kept, placed = image.stages[stage].kept.numpy(), stack(views)
    pixels = "".join(
        _image(replace(view, image=painted), f'x="{left}" y="{top}"')
        for (view, left, top), painted in zip(placed, rebuilt(views, owners(image, stage), kept), strict=True)
    )
    label = f"the image rebuilt from {counted(len(kept), 'representative')}"
    return _panel(placed, f"{pixels}{_discarded(image, placed, stage, name)}", label)


def _panel(placed: list[Place], drawn: str, label: str, below: float = 0.0, style: str = "") -> str:
    """An SVG whose units are cells, with room for text `below` the views."""
    width, height = _size(placed)
    return (
        f'<svg viewBox="0 0 {width} {height + below:.4g}" preserveAspectRatio="xMinYMin" '
        f'style="{style}" role="img" aria-label="{label}">{drawn}</svg>'
    )


def _size(placed: list[Place]) -> tuple[int, int]:
    return max(left + view.columns for view, left, _ in placed), max(top + view.rows for view, _, top in placed)


def _uses(placed: list[Place], name: str) -> str:
    """The defined images of the views, in their places."""
    return "".join(
        f'<use href="#{name}-{number}" x="{left}" y="{top}"/>' for number, (_, left, top) in enumerate(placed)
    )


def _representatives(
    image: ImageReport, placed: list[Place], stage: int, owner: np.ndarray | None, scale: WeightScale, below: float
) -> Iterable[str]:
    """One group per representative; notes are written from the line `below` on."""
    state, view_name = image.stages[stage], "frame" if image.is_video else "view"
    kept, weights = state.kept.numpy(), state.weights.float().numpy()
    colours = ["#" + bytes(colour).hex() for colour in (255 * scale.colours(weights)).round().astype(np.uint8)]
    radii = np.maximum(NARROWEST_DISC, WIDEST_DISC * np.sqrt(weights / scale.largest))
    for place, token in enumerate(kept.tolist()):
        members = kept[place : place + 1] if owner is None else np.flatnonzero(owner == token)
        ((x, y),) = _cells(placed, kept[place : place + 1])
        where = f"token {token}: {_where(placed, token, view_name)}, position {_position(state.positions[place])}"
        stands_for = f"weight {weights[place]:.3g}, stands for {counted(len(members), 'token')}"
        yield (
            f'<g class="one"><title>{where}\n{stands_for}</title>'
            f'<path d="{_path(_cells(placed, members))}"/>'
            f'<circle cx="{x + 0.5}" cy="{y + 0.5}" r="{radii[place]:.3g}" fill="{colours[place]}"/>'
            f'<text y="{below:.4g}">{where}<tspan x="0" dy="1.2em">{stands_for}</tspan></text></g>'
        )


def _where(placed: list[Place], token: int, name: str) -> str:
    """Row and column of a token, counted from 0, and its view (called `name`) if there are several."""
    number = next(number for number, (view, _, _) in enumerate(placed) if token < view.stop)
    row, column = divmod(token - placed[number][0].start, placed[number][0].columns)
    return f"{f'{name} {number}, ' if len(placed) > 1 else ''}row {row}, column {column}"


def _position(position: Tensor) -> str:
    """A rotary position; with several axes, one number for each."""
    return str(position.tolist()).replace("[", "(").replace("]", ")")


def _discarded(image: ImageReport, placed: list[Place], stage: int, name: str) -> str:
    """The area that no representative stands for, if there is one."""
    gone = image.discarded_at(stage).numpy()
    if not len(gone):
        return ""
    tokens = "this token" if len(gone) == 1 else f"these {len(gone)} tokens"
    title = f"discarded: no representative stands for {tokens}"
    path = f'<path fill="url(#{name}-gone)" d="{_path(_cells(placed, gone))}"/>'
    return f'<g class="gone"><title>{title}</title>{path}</g>'


def _cells(placed: list[Place], tokens: np.ndarray) -> list[Corner]:
    """(column, row) of tokens in a panel."""
    parts = [view.cells(tokens[view.holds(tokens)]) + [left, top] for view, left, top in placed]
    return [(x, y) for x, y in np.concatenate(parts).tolist()]


def _path(cells: Iterable[Corner]) -> str:
    """The outline of an area as path data: all turns are right angles, so each side is a letter and a length."""
    written = []
    for loop in outline(cells):
        written.append(f"M{loop[0][0]} {loop[0][1]}")
        for (x, y), (next_x, next_y) in zip(loop, loop[1:], strict=False):
            written.append(f"h{next_x - x}" if y == next_y else f"v{next_y - y}")
        written.append("z")
    return "".join(written)
