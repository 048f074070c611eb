"""The colours of all figures, for light and for dark pages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from matplotlib.colors import Colormap, LinearSegmentedColormap


@dataclass(frozen=True)
class Theme:
    """Colours by what they are for; a figure uses those of one theme.

    background: the page; ink: titles and labels; soft: captions and remarks; faint: frames and threads
    gone: where tokens are missing; rim: around discs; shades: black and white of an image under discs
    weights: from a token that stands for itself to the heaviest; tints: how bright neighbouring regions are
    bars: of stages in their order; lines: curves that stand out
    """

    background: str
    ink: str
    soft: str
    faint: str
    gone: str
    rim: str
    shades: tuple[str, str]
    weights: tuple[str, ...]
    tints: tuple[float, float]
    bars: tuple[str, str, str]
    lines: tuple[str, ...]

    @cached_property
    def weight_colours(self) -> Colormap:
        return LinearSegmentedColormap.from_list("weights", self.weights)

    @cached_property
    def faded(self) -> Colormap:
        """For the image under discs."""
        return LinearSegmentedColormap.from_list("faded", self.shades)


LIGHT = Theme(
    background="#ffffff",
    ink="#22262e",
    soft="#5b6472",
    faint="#9aa3b0",
    gone="#eef0f3",
    rim="#ffffff",
    shades=("#a6a6a6", "#ffffff"),
    weights=("#ee8b00", "#e5521f", "#c9184a", "#590d6e"),
    tints=(0.78, 0.95),
    bars=("#d5dae1", "#9aa3b0", "#6b7787"),
    lines=("#c9184a", "#f3722c", "#590d6e", "#0b7a75", "#2667c9"),
)
DARK = Theme(
    background="#1e2129",
    ink="#dfe3ea",
    soft="#a3acb9",
    faint="#68717f",
    gone="#2b303b",
    rim="#14161c",
    shades=("#101218", "#6f7681"),
    weights=("#ffd166", "#ff8a4c", "#f0447b", "#b987ff"),
    tints=(0.52, 0.68),
    bars=("#3d4450", "#68717f", "#a3acb9"),
    lines=("#ff5c8a", "#ff8a4c", "#b987ff", "#35c2b8", "#6ea8ff"),
)
THEMES = {"light": LIGHT, "dark": DARK}
