"""Evidence maps: what made tokens worth keeping, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np

from covist.extras import require_extra
from covist.report.stages import ImageReport
from covist.viz.layout import View
from covist.viz.svg import pixel_data
from covist.viz.theme import EVIDENCE, LIGHT

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


def draw_maps(image: ImageReport, views: list[View]) -> str:
    """Draw an HTML fragment with the evidence maps of an image, bright where tokens matter; empty without maps.

    image: what was kept of it, from `Report.images`
    views: what to show of the image, from `seen_views`

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
    require_extra("covist.viz.draw_maps", "figures")
    return "".join(_draw_map(shown, views) for shown in evidence_maps(image))


def _draw_map(shown: EvidenceMap, views: list[View]) -> str:
    """The views of one map share a scale."""
    from matplotlib import colormaps

    low, high = float(np.nanmin(shown.values)), float(np.nanmax(shown.values))
    colours = colormaps[EVIDENCE].with_extremes(bad=LIGHT.gone)
    scaled = np.ma.masked_invalid((shown.values - low) / (high - low))
    panels = "".join(
        f'<img alt="" style="image-rendering:pixelated;display:block;width:100%" '
        f'src="{pixel_data(colours(view.on_grid(scaled), bytes=True)[..., :3])}">'
        for view in views
    )
    caption = f"<small>{escape(shown.caption)}</small>" if shown.caption else ""
    return f"<figure><figcaption><b>{escape(shown.title)}</b>{caption}</figcaption>{panels}</figure>"
