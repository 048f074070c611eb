"""The colours of all figures, for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from PIL.ImageColor import getrgb

if TYPE_CHECKING:
    from matplotlib.colors import Colormap


@dataclass(frozen=True)
class Theme:
    """The colours of a figure, by purpose.

    background: the page
    ink: titles and labels
    soft: captions and remarks
    faint: frames, and lines between tokens
    gone: where tokens are missing
    rim: around discs
    shades: black and white of the image under discs
    weights: from a token that stands for itself to the heaviest
    tints: brightness of neighbouring regions
    bars: bars of the stages, in order
    lines: curves that stand out
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

    @property
    def scheme(self) -> str:
        """What browsers call it: `light` or `dark`."""
        return "dark" if sum(getrgb(self.background)[:3]) < 384 else "light"

    @cached_property
    def weight_colours(self) -> Colormap:
        return _gradient("weights", self.weights)

    @cached_property
    def faded(self) -> Colormap:
        """The colours of the image under discs."""
        return _gradient("faded", self.shades)


def _gradient(name: str, colours: Sequence[str]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap  # an extra, which pages do not need

    return LinearSegmentedColormap.from_list(name, colours)


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
_MAGMA = """#000004 #0a0822 #1d1147 #36106b #51127c #6a1c81 #832681 #9c2e7f #b73779 #d0416f #e75263 #f56b5c #fc8961
#fea772 #fec488 #fde2a3 #fcfdbf"""
EVIDENCE = tuple(_MAGMA.split())
"""The colours of evidence maps: matplotlib's magma, at 17 places, because pages are drawn without matplotlib."""


def blend(stops: Sequence[str], places: np.ndarray) -> np.ndarray:
    """Colours [..., 3], from 0 to 1, at places [...] between the first stop (0) and the last (1)."""
    colours = np.array([getrgb(stop) for stop in stops]) / 255
    return np.stack([np.interp(places, np.linspace(0, 1, len(stops)), channel) for channel in colours.T], axis=-1)
