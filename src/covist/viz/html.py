"""What was kept, as HTML for notebooks and pages: interactive without scripts, light or dark like its surroundings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from html import escape

from covist.report.stages import ImageReport
from covist.viz.layout import View
from covist.viz.svg import define_images, draw_panel
from covist.viz.theme import LIGHT
from covist.viz.weights import WeightScale

# Text inherits its colour. Regions are transparent until the pointer is on one of them; then the others are darkened.
_STYLE = f"""<style>
.covist {{ font: 13px/1.45 system-ui, sans-serif; color: inherit }}
.covist h3 {{ font-size: 15px; margin: 0 0 .4em }}
.covist dl {{ display: grid; grid-template-columns: max-content auto; gap: 0 1em; margin: 0 0 .8em }}
.covist dt {{ opacity: .65; margin: 0 }}
.covist dd {{ margin: 0 }}
.covist .stages {{ display: flex; flex-wrap: wrap; gap: 16px }}
.covist figure {{ flex: 1 1 300px; max-width: 420px; margin: 0 }}
.covist .film figure {{ max-width: 900px }}
.covist figcaption {{ margin-bottom: 4px }}
.covist figure svg {{ display: block; width: 100%; height: auto; max-height: 640px; overflow: visible }}
.covist svg text {{ fill: currentColor; pointer-events: none }}
.covist .one text, .covist .all:hover + .hint {{ visibility: hidden }}
.covist .one:hover text {{ visibility: visible }}
.covist .hint {{ opacity: .65 }}
.covist path {{ fill-rule: evenodd; shape-rendering: crispEdges }}
.covist .one path {{ fill: #000; fill-opacity: 0 }}
.covist .all:hover .one:not(:hover) path {{ fill-opacity: .66 }}
.covist .one:hover path {{ stroke: #fff; stroke-width: 2px; vector-effect: non-scaling-stroke }}
.covist circle {{ stroke: #fff; stroke-width: 1px; vector-effect: non-scaling-stroke }}
.covist .all:hover .one:not(:hover) circle {{ opacity: .35 }}
.covist .scale {{ display: inline-block; width: 120px; height: 10px; margin: 0 .4em; border-radius: 2px;
  background: linear-gradient(to right, {", ".join(LIGHT.weights)}) }}
</style>"""


def draw_html(
    images: Sequence[ImageReport],
    views: Sequence[list[View]],
    title: str = "",
    facts: Mapping[str, str] | None = None,
    scope: str = "",
) -> str:
    """Draw an HTML fragment with a panel for every stage of every image.

    Pointing at a representative highlights the tokens that it represents and shows its weight and position.

    images: what was kept, from `Report.images`
    views: what to show of each image, from `seen_views`
    facts: lines below the title, by name
    scope: makes the ids of this drawing different from those of others, for pages that hide some of their drawings
        (browsers do not find ids in hidden parts)

    >>> import covist
    >>> model, processor, clip = covist.tiny.load()
    >>> image, question, answer = covist.tiny.demo()
    >>> inputs = processor(images=image, text=covist.tiny.prompt_for(question), return_tensors="pt")
    >>> with covist.compress(model, processor, budget=64, clip=clip) as handle:
    ...     output = model(**inputs)
    >>> images = handle.report.images
    >>> page = covist.viz.draw_html(images, [covist.viz.seen_views(image) for image in images])
    >>> page.count('<g class="one">')
    64
    """
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in (facts or {}).items())
    drawn = "".join(_draw_image(*pair, scope) for pair in zip(images, views, strict=True))
    return f'<div class="covist">{_STYLE}{heading}{f"<dl>{lines}</dl>" if lines else ""}{drawn}</div>'


def _draw_image(image: ImageReport, views: list[View], scope: str) -> str:
    scale = WeightScale(max(float(stage.weights.max()) for stage in image.stages))
    pixels = blake2b(scope.encode(), digest_size=6)
    for view in views:
        pixels.update(view.image.tobytes() + bytes(f"{view.rows}x{view.columns}", "ascii"))
    name = f"covist-{pixels.hexdigest()}"  # distinct names on one page; equal names mean equal images
    stages = "".join(
        f"<figure><figcaption>{image.describe_stage(stage)}</figcaption>"
        f"{draw_panel(image, views, stage, scale, name)}</figure>"
        for stage in range(len(image.stages))
    )
    kind = "stages film" if image.is_video else "stages"
    return f'{define_images(views, name)}<div class="{kind}">{stages}</div>{_legend(image, scale)}'


def _legend(image: ImageReport, scale: WeightScale) -> str:
    if len(scale.examples) == 1:
        lines = ["every disc has weight 1"]
    else:
        lines = [f'weight 1<span class="scale"></span>{scale.largest:.3g}, the colour and area of a disc']
    if len(image.discarded_at(-1)):
        lines.append("hatched: discarded, no representative stands for these tokens")
    return f"<p>{'; '.join(lines)}</p>"
