"""Scenes for the second test bed: 128 pixels wide, 12 to 24 objects, two numbers and two words in coloured glyphs.

The tiles show everything at full size; the base view shows it at half size, at which glyphs cannot be read.
"""

from functools import lru_cache

import numpy as np

from covist.tiny import glyphs
from covist.tiny.scenes import COLORS, ROLES, SHAPES, SIZES, Layout, Look, Scene, Thing

HD_SIDE = 128
HD_LOOK = Look(HD_SIDE, small=5.0, large=6.5, glyph_width=glyphs.WIDTH, glyph_height=glyphs.HEIGHT)
FEWEST_OBJECTS, MOST_OBJECTS = 12, 24
MOST_DECOYS = 4
TEXTS = {"digit": ("number", glyphs.DIGITS), "letter": ("word", glyphs.LETTERS)}  # what its glyphs spell
TEXTS_PER_KIND = 2


def _text(kind: str, color: str, layout: Layout, rng: np.random.Generator) -> list[Thing]:
    """Three glyphs of one colour in a row."""
    pitch = HD_LOOK.glyph_width + 1
    spot = layout.place(len(ROLES) * pitch / 2, HD_LOOK.glyph_height / 2, tries=400)
    assert spot is not None, "text is placed before anything else"
    chars = rng.choice(list(TEXTS[kind][1]), len(ROLES))
    return [
        Thing(kind, spot[0] + (index - 1) * pitch, spot[1], color=color, char=str(char), role=role)
        for index, (char, role) in enumerate(zip(chars, ROLES, strict=True))
    ]


@lru_cache(maxsize=8192)
def sample_hd_scene(seed: int) -> Scene:
    """The scene of a seed: two numbers, two words, 12 to 24 coloured objects and grey decoys.

    >>> len(covist.tiny.hd.sample_hd_scene(7).objects) >= 12
    True
    """
    rng = np.random.default_rng([seed, 10])
    layout = Layout(rng, HD_SIDE)
    things: list[Thing] = []
    for kind in TEXTS:
        for color in rng.choice(list(COLORS), TEXTS_PER_KIND, replace=False):
            things += _text(kind, str(color), layout, rng)
    # uneven palettes, so that several objects of one colour or shape are common
    color_odds, shape_odds = rng.dirichlet(np.full(len(COLORS), 2.0)), rng.dirichlet(np.full(len(SHAPES), 2.0))
    objects = int(rng.integers(FEWEST_OBJECTS, MOST_OBJECTS + 1))
    for kind in ["object"] * objects + ["decoy"] * int(rng.integers(1, MOST_DECOYS + 1)):
        size = str(rng.choice(list(SIZES)))
        color, shape = str(rng.choice(list(COLORS), p=color_odds)), str(rng.choice(SHAPES, p=shape_odds))
        half = HD_LOOK.small if size == "small" else HD_LOOK.large
        spot = layout.place(half, half, tries=400 if kind == "object" else 60)
        if spot:
            things.append(Thing(kind, *spot, color=color if kind == "object" else "grey", shape=shape, size=size))
    return Scene(seed, tuple(things), HD_LOOK)
