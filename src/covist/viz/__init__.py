"""Drawings of what was kept: evidence maps, representatives, and the tokens that each one represents."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covist.extras import require_extra
from covist.viz.files import save_figure, save_page
from covist.viz.html import draw_html
from covist.viz.layout import seen_views
from covist.viz.maps import draw_maps
from covist.viz.theme import DARK, LIGHT, Theme

if TYPE_CHECKING:
    from covist.viz.answers import draw_answer
    from covist.viz.figure import draw_overlay, draw_report
    from covist.viz.film import draw_film
    from covist.viz.strip import draw_strip

__all__ = [
    "DARK",
    "LIGHT",
    "Theme",
    "draw_answer",
    "draw_film",
    "draw_html",
    "draw_maps",
    "draw_overlay",
    "draw_report",
    "draw_strip",
    "save_figure",
    "save_page",
    "seen_views",
]

# Looked up on first use, because matplotlib is slow to import, and an extra.
_FIGURES = {
    "draw_answer": "answers",
    "draw_film": "film",
    "draw_overlay": "figure",
    "draw_report": "figure",
    "draw_strip": "strip",
}


def __getattr__(name: str) -> Any:
    if name not in _FIGURES:
        raise AttributeError(f"module 'covist.viz' has no attribute {name!r}")
    require_extra(f"covist.viz.{name}", "figures")
    return getattr(import_module(f"covist.viz.{_FIGURES[name]}"), name)
