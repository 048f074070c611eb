"""What was kept, as HTML for notebooks and pages: interactive without scripts, light or dark like its surroundings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from html import escape

from covist.report.stages import ImageReport
from covist.units import counted
from covist.viz.layout import View
from covist.viz.maps import draw_maps
from covist.viz.svg import define_images, draw_panel, draw_rebuilt, draw_seen
from covist.viz.theme import LIGHT, Theme
from covist.viz.weights import WeightScale

# Text inherits its colour. Regions are transparent until the pointer is on one of them; then the others are darkened.
_STYLE = """<style>
.covist { font: 13px/1.45 system-ui, sans-serif; color: inherit }
.covist h3 { font-size: 15px; margin: 0 0 .4em; overflow-wrap: anywhere }
.covist dl { display: grid; grid-template-columns: max-content auto; gap: 0 1em; margin: 0 0 .8em }
.covist dt { opacity: .65; margin: 0 }
.covist dd { margin: 0 }
.covist .stages { display: flex; flex-wrap: wrap; gap: 16px }
.covist figure { flex: 1 1 300px; max-width: 420px; margin: 0 }
.covist .film figure { max-width: 900px }
.covist .maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 16px;
  align-items: end; margin-bottom: 16px }
@media (max-width: 30rem) { .covist .maps { grid-template-columns: 1fr 1fr } }
.covist small { display: block; font-size: 12px; opacity: .75 }
.covist figcaption { margin-bottom: 4px }
.covist figure svg { display: block; width: 100%; height: auto; max-height: 640px; overflow: visible }
.covist svg text { fill: currentColor; pointer-events: none }
.covist .one text, .covist .all:hover + .hint { visibility: hidden }
.covist .one:hover text { visibility: visible }
.covist .hint { opacity: .65 }
.covist path { fill-rule: evenodd; shape-rendering: crispEdges }
.covist .one path { fill: #000; fill-opacity: 0 }
.covist .all:hover .one:not(:hover) path { fill-opacity: .66 }
.covist .one:hover path { stroke: #fff; stroke-width: 2px; vector-effect: non-scaling-stroke }
.covist circle { stroke: #fff; stroke-width: 1px; vector-effect: non-scaling-stroke }
.covist .all:hover .one:not(:hover) circle { opacity: .35 }
.covist .scale { display: inline-block; width: 120px; height: 10px; margin: 0 .4em; border-radius: 2px }
</style>"""


def draw_html(
    images: Sequence[ImageReport],
    views: Sequence[list[View]],
    title: str = "",
    facts: Mapping[str, str] | None = None,
    scope: str = "",
    evidence: bool = False,
    theme: Theme = LIGHT,
) -> str:
    """Draw an HTML fragment with a panel for every stage of every image.

    Pointing at a representative highlights the tokens that it represents and shows its weight and position.

    images: what was kept, from `Report.images`
    views: what to show of each image, from `seen_views`
    facts: lines below the title, by name
    scope: makes the ids of this drawing different from those of others, for pages that hide some of their drawings
        (browsers do not find ids in hidden parts)
    evidence: also show each image, its evidence maps, and what can be rebuilt from its representatives; not of videos
    theme: the colours of weights and maps; text has the colour of the page around it

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
    drawn = "".join(_draw_image(*pair, scope, evidence, theme) for pair in zip(images, views, strict=True))
    return f'<div class="covist">{_STYLE}{heading}{f"<dl>{lines}</dl>" if lines else ""}{drawn}</div>'


def _draw_image(image: ImageReport, views: list[View], scope: str, evidence: bool, theme: Theme) -> str:
    scale = WeightScale(image.largest_weight, theme)
    pixels = blake2b(scope.encode(), digest_size=6)
    for view in views:
        pixels.update(view.image.tobytes() + bytes(f"{view.rows}x{view.columns}", "ascii"))
    name = f"covist-{pixels.hexdigest()}"  # distinct names on one page; equal names mean equal images
    stages = "".join(
        _figure(image.describe_stage(stage), draw_panel(image, views, stage, scale, name))
        for stage in range(len(image.stages))
    )
    kind = "stages film" if image.is_video else "stages"
    above, below = _evidence(image, views, name, theme) if evidence and not image.is_video else ("", "")
    drawn = f'<div class="{kind}">{stages}{below}</div>{_legend(image, scale)}'
    return f"{define_images(views, name)}{above}{drawn}"


def _evidence(image: ImageReport, views: list[View], name: str, theme: Theme) -> tuple[str, str]:
    """The image with its maps, and what can be rebuilt from each stage."""
    seen = _figure("<b>what the encoder sees</b>", draw_seen(views, name))
    rebuilt = "".join(
        _figure(f"rebuilt from {counted(len(stage.kept), 'representative')}", draw_rebuilt(image, views, place, name))
        for place, stage in enumerate(image.stages)
    )
    return f'<div class="maps">{seen}{draw_maps(image, views, theme)}</div>', rebuilt


def _figure(caption: str, drawn: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"


def _legend(image: ImageReport, scale: WeightScale) -> str:
    if len(scale.examples) == 1:
        lines = ["every disc has weight 1"]
    else:
        colours = f"background:linear-gradient(to right, {', '.join(scale.theme.weights)})"
        shown = f'<span class="scale" style="{colours}"></span>'
        lines = [f"weight 1{shown}{scale.largest:.3g}, the colour and area of a disc"]
    if len(image.discarded_at(-1)):
        lines.append("hatched: discarded, no representative stands for these tokens")
    return f"<p>{'; '.join(lines)}</p>"
