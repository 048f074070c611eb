"""Evidence maps: what made tokens worth keeping, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
from PIL.ImageColor import getrgb

from covist.report.stages import ImageReport
from covist.viz.layout import View
from covist.viz.svg import pixel_data
from covist.viz.theme import EVIDENCE, LIGHT, Theme, blend

MAP_NAMES = ("attention", "distinctiveness", "instruction", "combined")


@dataclass(frozen=True)
class EvidenceMap:
    """A map over all original tokens [N], nan for tokens that were already removed."""

    title: str
    caption: str
    values: np.ndarray


def evidence_maps(image: ImageReport) -> list[EvidenceMap]:
    """The maps of all stages in the order of MAP_NAMES, without constant maps."""
    found = []
    for number, stage in enumerate(image.stages):
        for name in sorted(stage.maps, key=lambda name: (MAP_NAMES + (name,)).index(name)):
            values = stage.maps[name].float().numpy()
            if np.ptp(values) < 1e-9:
                continue
            whole = np.full(image.tokens, np.nan)
            whole[image.tokens_before(number).numpy()] = values
            title = {"combined": "evidence" if number else "combined evidence"}.get(name, name)
            title = f"{title}, layer {stage.depth}" if number else title
            found.append(EvidenceMap(title, stage.captions.get(name, ""), whole))
    return found


def draw_maps(image: ImageReport, views: list[View], theme: Theme = LIGHT) -> str:
    """Draw an HTML fragment with the evidence maps of an image, bright where tokens matter; empty without maps.

    image: what was kept of it, from `Report.images`
    views: what to show of the image, from `seen_views`
    theme: `covist.viz.LIGHT` or `covist.viz.DARK`

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> seen = handle.report.images[0]
    >>> covist.viz.draw_maps(seen, covist.viz.seen_views(seen)).count("<figure>")
    4
    """
    return "".join(_draw_map(shown, views, theme) for shown in evidence_maps(image))


def _draw_map(shown: EvidenceMap, views: list[View], theme: Theme) -> str:
    title, caption = escape(shown.title), escape(shown.caption)
    panels = "".join(
        f'<img alt="Map of {title}{f", {caption}" if caption else ""}" '
        f'style="image-rendering:pixelated;display:block;width:100%" src="{pixel_data(colours)}"/>'
        for colours in (map_colours(shown.values, view, theme) for view in views)
    )
    said = f"<small>{caption}</small>" if caption else ""
    return f"<figure><figcaption><b>{title}</b>{said}</figcaption>{panels}</figure>"


def map_colours(values: np.ndarray, view: View, theme: Theme) -> np.ndarray:
    """Colours [rows, columns, 3] of a view, of values of all tokens [N]: the views of one map share a scale."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    shown = view.on_grid((values - low) / (high - low))
    colours = np.where(np.isnan(shown)[..., None], np.array(getrgb(theme.gone)) / 255, blend(EVIDENCE, shown))
    return (255 * colours).round().astype(np.uint8)
