"""What was kept, as HTML."""

from __future__ import annotations

from covist.serve.sequence import Finished
from covist.viz import draw_html, draw_maps, seen_views

PLAIN = '<p class="cv-note">The budget covers all tokens: nothing was compressed, so there is nothing to draw.</p>'
WAITING = "The drawing follows the answer."
REFUSED = "Nothing was kept, because the question was refused."
NO_MAPS = '<p class="cv-note">This method has no evidence maps.</p>'


def empty_drawing(words: str) -> str:
    """The place of the drawing, while there is none."""
    return f'<div class="cv-empty">{words}</div>'


def empty_maps() -> str:
    """The places of the evidence maps, while there are none."""
    places = 4 * '<div class="cv-empty"></div>'
    return f'<div class="cv-maps" aria-hidden="true">{places}</div>'


def count_stages(end: Finished) -> int:
    """The number of stages, for the slider."""
    return max((len(image.stages) for image in end.cost.images), default=1)


def draw_kept(end: Finished, tab: str) -> str:
    """The representatives of every stage over the image; `tab` keeps the drawings of two tabs apart."""
    images = end.cost.images
    return draw_html(images, [seen_views(image) for image in images], scope=tab) if images else PLAIN


def draw_evidence(end: Finished) -> str:
    """The evidence maps, or a line if the method has none."""
    drawn = "".join(draw_maps(image, seen_views(image)) for image in end.cost.images)
    return f'<div class="cv-maps">{drawn}</div>' if drawn else NO_MAPS
