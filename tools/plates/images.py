"""What the gallery shows: four images, and a film."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from covist import tiny
from covist.page.examples import PHOTOGRAPH
from covist.tiny.scenes import Thing

FRAMES = 6
FILMED = 2_003_808  # a scene that leaves room for something to pass


@dataclass(frozen=True)
class Still:
    """An image, what it is, and what is asked about it."""

    caption: str
    image: Image.Image
    question: str


def stills() -> dict[str, Still]:
    """By the names of their figures."""
    image, question, _ = tiny.demo()
    crowded = Image.fromarray(tiny.render(tiny.sample_dense_scene(tiny.HELD_OUT_SEEDS[0])))
    return {
        "scene": Still("A scene of the suite", image, question),
        "crowded": Still("A crowded scene", crowded, "where is the blue cross?"),
        "landscape": Still("A landscape", landscape(), "where is the yellow circle?"),
        "photograph": Still("A photograph", Image.open(PHOTOGRAPH).convert("RGB"), "where is the orange circle?"),
    }


def film() -> tuple[list[Image.Image], np.ndarray]:
    """A yellow ball that crosses a scene in which nothing else moves: the frames, and which pixels of each show the
    ball [frames, side, side]."""
    scene = tiny.sample_scene(FILMED, objects=4)
    side, still = scene.look.side, tiny.render(scene)
    shown = []
    for place in np.linspace(0.12, 0.88, FRAMES):
        ball = Thing("object", x=side * place, y=side * 0.5, color="yellow", shape="circle", size="large")
        shown.append(tiny.render(replace(scene, things=(*scene.things, ball))))
    return [Image.fromarray(frame) for frame in shown], (np.stack(shown) != still).any(-1)


def landscape(side: int = 336) -> Image.Image:
    """A photograph-like image: haze, ridges, a low sun and its light on water, with grain everywhere."""
    draw = np.random.default_rng(7)
    x, y = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side))
    sky, haze = np.array([0.30, 0.46, 0.72]), np.array([0.96, 0.78, 0.58])
    image = sky + (haze - sky) * np.clip(y / 0.62, 0, 1)[..., None] ** 1.4
    image += 0.5 * np.exp(-((x - 0.68) ** 2 + (y - 0.40) ** 2) / 0.006)[..., None] * np.array([1.0, 0.9, 0.6])
    for ridge, (height, shade) in enumerate(((0.44, 0.62), (0.52, 0.42), (0.58, 0.24))):
        waves = sum(draw.normal() * np.sin(2 * math.pi * (k * x + draw.random())) / k for k in range(1, 40))
        below = y > height + 0.03 * waves
        image = np.where(below[..., None], shade * np.array([0.55, 0.62, 0.70]) + 0.03 * ridge, image)
    water = y > 0.66
    mirrored = image[np.clip((2 * 0.66 * side - np.arange(side)).astype(int), 0, side - 1)]
    ripples = 0.06 * np.sin(260 * y * (1 + y)) * np.exp(-(((x - 0.68) / (0.05 + 0.5 * (y - 0.66).clip(0))) ** 2))
    image = np.where(water[..., None], 0.72 * mirrored + 2.2 * ripples[..., None] * np.array([1.0, 0.85, 0.6]), image)
    image += draw.normal(scale=0.02, size=image.shape)
    return Image.fromarray((255 * image.clip(0, 1)).astype(np.uint8))
