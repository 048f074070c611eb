"""Figures on light and on dark pages."""

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image
from support.reports import SQUARE, image_report

from covist.grid import Grid
from covist.viz import DARK, LIGHT, draw_film, draw_overlay, draw_report, save_figure, seen_views

THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
FRAMES = Grid(((4, 6),) * 3, "frames")


def luminance(colour) -> float:
    """Of WCAG 2."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@THEMES
@pytest.mark.parametrize("counts", [(8,), (12, 6, 2)])
@pytest.mark.parametrize("draw, grid", [(draw_report, SQUARE), (draw_overlay, SQUARE), (draw_film, FRAMES)])
def test_every_word_can_be_read_on_its_page(theme, draw, grid, counts):
    report = image_report(grid, counts)
    figure = draw(report, seen_views(report), "question", "method", theme=theme)
    words = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(words) > 5
    assert {text.get_text() for text in words if contrast(text.get_color(), theme.background) < 4.5} == set()


@THEMES
def test_the_page_behind_a_figure_is_the_theme_s(theme, tmp_path):
    report = image_report(SQUARE, (8,))
    save_figure(draw_report(report, seen_views(report), theme=theme), tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as written:
        corner = written.convert("RGB").getpixel((2, 2))
    assert corner == tuple(round(255 * part) for part in to_rgb(theme.background))
