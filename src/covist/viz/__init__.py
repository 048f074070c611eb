"""Pictures of what was kept: evidence maps, representatives, and which tokens each one stands for."""

from covist.viz.answers import draw_answer
from covist.viz.figure import draw_overlay, draw_report, save_figure
from covist.viz.layout import seen_views

__all__ = ["draw_answer", "draw_overlay", "draw_report", "save_figure", "seen_views"]
