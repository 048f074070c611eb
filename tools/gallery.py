"""Write docs/gallery.md: what every registered method keeps of the same three images, in one style, light and dark.

    python tools/gallery.py                       write the page and its figures
    python tools/gallery.py --methods divprune    only these methods, to look at them quickly

Everything runs on the embedded models, so that the same release draws the same page everywhere.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

import covist
from covist import tiny
from covist.contract.stages import ImageReport
from covist.methods.registry import available_methods
from covist.viz.layout import View, owners, seen_views
from covist.viz.panels import WeightScale, show_image, show_representatives

DOCS = Path(__file__).resolve().parents[1] / "docs"
BUDGET = 128  # methods that act inside the decoder can reach it
COLUMNS, PANEL, HEADING = 5, 2.0, 0.3  # panels beside each other; inches
THEMES = {"light": ("white", "#22262e"), "dark": ("#1e2129", "#d5dae1")}  # background, ink
QUESTION = "where is the blue square?"
INTRODUCTION = f"""\
<!-- Written by `python tools/gallery.py`, on the embedded models. -->

# Gallery

What every method keeps of the same three images at a budget of {BUDGET} of 576 tokens. Each disc is a token that was
kept. Its size and colour show its weight, which is how much it counts in attention. Lines lead to the tokens that it
stands for. Numbers are token counts. Methods that act inside the decoder are drawn at their last stage. There they keep
fewer than {BUDGET}, because they have shown more tokens to earlier layers.

A method whose selection looks right does not always answer correctly: [Results](results.md) has the measurements.
`covist show --method NAME` draws the same for your own image, with the evidence for it."""


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


def images() -> dict[str, tuple[str, Image.Image]]:
    """Name of a figure -> what it shows."""
    crowded = Image.fromarray(tiny.render(tiny.sample_dense_scene(tiny.HELD_OUT_SEEDS[0])))
    return {
        "scene": ("A scene of the suite", tiny.demo()[0]),
        "crowded": ("A crowded scene", crowded),
        "landscape": ("A landscape, rendered; the model was trained on nothing like it", landscape()),
    }


@torch.inference_mode()
def kept_by(methods: Sequence[str], image: Image.Image) -> dict[str, ImageReport]:
    """What each method makes of an image on the embedded model."""
    model, processor, clip = tiny.load()
    inputs = processor(images=image, text=tiny.prompt_for(QUESTION), return_tensors="pt")
    reports = {}
    for method in methods:
        with covist.compress(model, processor, method=method, budget=BUDGET, clip=clip) as handle:
            model(**inputs)
        reports[method] = handle.report.images[0]
    return reports


def draw(image: Image.Image, reports: dict[str, ImageReport], theme: str) -> Figure:
    """The image, and beside it what each method keeps."""
    background, ink = THEMES[theme]
    rows = -(-(1 + len(reports)) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * PANEL, rows * (PANEL + HEADING)), facecolor=background, layout="constrained")
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for unused in axes[1 + len(reports) :]:
        unused.set_axis_off()
    show_image(axes[0], _view(next(iter(reports.values())), image), "the image")
    for place, (method, report) in zip(axes[1:], reports.items(), strict=False):
        stage = report.stages[-1]
        weights = stage.weights.float().numpy()
        owner = owners(report, len(report.stages) - 1)
        view = _view(report, image)
        cell = 72 * PANEL / view.columns
        title = f"{method} ({len(stage.kept)})"
        scale = WeightScale(float(weights.max()))
        show_representatives(place, view, stage.kept.numpy(), weights, owner, scale, cell, title)
    for place in axes:
        place.title.set_color(ink)
    return figure


def _view(report: ImageReport, image: Image.Image) -> View:
    (view,) = seen_views(report, image)
    return view


def write(methods: Sequence[str], docs: Path = DOCS) -> None:
    """The page and its figures, in both themes."""
    (docs / "gallery").mkdir(exist_ok=True)
    parts = [INTRODUCTION]
    for name, (caption, image) in images().items():
        reports = kept_by(methods, image)
        parts.append(f"## {caption}")
        for theme, (background, _) in THEMES.items():
            path = docs / "gallery" / f"{name}-{theme}.webp"
            draw(image, reports, theme).savefig(path, dpi=110, facecolor=background, pil_kwargs={"quality": 80})
        shown = [f"![{caption}, by method](gallery/{name}-{theme}.webp#only-{theme})" for theme in THEMES]
        parts.append("\n".join(shown))
    (docs / "gallery.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", help="names with commas; by default every method of this package")
    named = parser.parse_args().methods
    ours = [name for name, method in available_methods().items() if method.__module__.startswith("covist.")]
    write(named.split(",") if named else ours)


if __name__ == "__main__":
    main()
