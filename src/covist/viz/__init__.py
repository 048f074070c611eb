"""Drawings of what was kept: evidence maps, representatives, and the tokens that each one represents."""

from covist.viz.answers import draw_answer
from covist.viz.figure import draw_overlay, draw_report
from covist.viz.files import save_figure, save_page
from covist.viz.film import draw_film
from covist.viz.html import draw_html
from covist.viz.layout import seen_views
from covist.viz.maps import draw_maps
from covist.viz.theme import DARK, LIGHT, Theme

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
    "save_figure",
    "save_page",
    "seen_views",
]
