"""Write the pages of the gallery: what methods keep of four images, what is kept in every family, and of a film.

    python tools/gallery.py                       write the pages and all figures, also of the front pages
    python tools/gallery.py --methods divprune    only these methods, to look at them quickly

Nothing is downloaded: methods and the film run on the embedded model, families on models with random weights. The same
release draws the same page everywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL.Image import Resampling
from transformers.utils import logging

from covist.methods.catalogue import WHERE
from covist.methods.create import create_method
from covist.methods.registry import methods_for_any_model
from covist.viz.theme import THEMES, Theme
from plates import families, film, images, methods, show

DOCS = Path(__file__).resolve().parents[1] / "docs"
DPI, QUALITY = 150, 72  # a figure is below 400 kB
SIDE = 450  # pixels of an image on the front page
SCALING = {"scene": Resampling.NEAREST, "photograph": Resampling.BICUBIC}
PHOTOGRAPHED = "What covist keeps of a photograph, and why"
WRITTEN = "<!-- Written by `python tools/gallery.py`. -->"
INTRODUCTION = """\
# Gallery

What methods keep of the same four images, what covist keeps in every family, and what methods keep of a film. Each
disc is a token that was kept. Its size and colour show its weight, which is how much it counts in attention. Lines
lead to the tokens that it stands for. `covist show --method NAME` draws the same for your own image, with the evidence
for it.

A method whose selection looks right does not always answer correctly: [Results](results.md) has the measurements, and
[Methods](methods.md) describes each method."""
PHOTOGRAPH = """\
Methods and the film run on the embedded model. Methods are grouped by what mainly decides which tokens stay. The
landscape is rendered. The cup of coffee is a photograph (by Rachel Michetti, CC0, from the data of scikit-image). The
model was trained on nothing like these two, so what it answers about them means nothing; how much methods keep of what
a model sees in photographs [was measured](results.md#third-test-bed-photographs) with another one."""
BEFORE = f"""\
These methods remove tokens before the first decoder layer, down to {methods.BUDGET} of 576, and every layer sees the
same ones."""
INSIDE = f"""\
These methods remove tokens between decoder layers, some of them also before the first one. They are drawn at their last
stage. There they keep fewer than {methods.BUDGET} tokens, because they have shown more to earlier layers."""
METHODS = ((("before",), "before", BEFORE), (("inside", "both"), "inside", INSIDE))
"""Where the methods of a page act, the word for it, and what to know about them."""
FAMILIES = f"""\
One square image in a model of each [family](families.md), with the tiles that its image processor makes of it;
`{families.METHOD}` keeps {families.BUDGET} of the tokens. Every token is drawn at the same size. Some families see the
image as one grid. Others add tiles in a higher resolution to a view of the whole image, or see each tile as a view of
its own. All views of an image share its budget. *Marks* are newlines, row breaks and the words that announce a tile.
They are always kept.

The weights are random, because no checkpoint is included. Grids, tiles and the number of tokens are those of the
published models. Which tokens are kept follows from the colours of the image and from chance, and shows nothing about
a trained model."""
FILM = """\
Six frames in which only the ball moves. The weights are those of the embedded model, in the class of LLaVA-NeXT-Video,
which has the same layers and averages 2 x 2 patches of a frame. The model was not trained on videos, so the strips show
what is kept, not how well it answers. A video is one state over all frames: a token that was kept in one frame may
stand for tokens of the others. Lines are drawn only within a frame. A token is on the ball if the ball covers half of
it; at a *still place* this never happens. Methods that also remove tokens inside the decoder are drawn at their last
stage."""
FOR_VIDEOS = """\
These methods were made for videos: they compare frames, or share the budget between them."""


class Page(NamedTuple):
    """A page of the gallery, and what the overview says about it."""

    name: str
    title: str
    summary: str
    parts: list[str]


def write(names: Sequence[str], docs: Path = DOCS) -> None:
    """The pages and their figures, in both themes."""
    for folder in ("gallery", "front"):
        (docs / folder).mkdir(exist_ok=True)
    stills = images.stills()
    for_videos = [name for name in names if create_method(name).info.made_for == "video"]
    for_images = [name for name in names if name not in for_videos]
    pages = [*_methods(for_images, stills, docs), _families(docs), _film(for_videos, docs)]
    for page in pages:
        _write(docs / f"{page.name}.md", [f"# {page.title}", *page.parts])
    # The headings are those that the whole gallery had when it was one page: links to them stay alive.
    sections = [f"## {page.title}\n\n{page.summary} [Look at them]({page.name}.md)." for page in pages]
    _write(docs / "gallery.md", [INTRODUCTION, _front(stills, docs), PHOTOGRAPH, *sections])


def _write(path: Path, parts: list[str]) -> None:
    path.write_text("\n\n".join([WRITTEN, *parts]) + "\n", encoding="utf-8")


def _methods(names: Sequence[str], stills: dict[str, images.Still], docs: Path) -> Iterator[Page]:
    shown = [(name, still, methods.kept_by(names, still)) for name, still in stills.items()]
    for places, place, introduction in METHODS:
        groups = methods.by_what_decides(names, places)
        if not groups:
            continue
        listed = "\n".join(f"- **{word}**: {', '.join(f'`{name}`' for name in own)}" for word, own in groups.items())
        parts = [introduction, listed]
        for name, still, reports in shown:
            draw = partial(methods.draw, still, reports, groups)
            plate = _save(f"gallery/{name}-{place}", f"{still.caption}: what methods keep {WHERE[place]}", draw, docs)
            parts += [f"## {still.caption}", plate]
        summary = f"{sum(map(len, groups.values()))} methods made for images that act {WHERE[place]}, on four of them."
        yield Page(f"gallery-{place}", WHERE[place].capitalize(), summary, parts)


def _families(docs: Path) -> Page:
    image = images.landscape(families.SIDE)
    kept = families.kept_by_family(image)
    listed = "\n".join(f"- `{one.family}` (`{one.preset}`): {one.facts}" for one in kept)
    plate = _save("gallery/families", "One image in every family", partial(families.draw, image, kept), docs)
    summary = f"One image in {len(kept)} families, on their own grids and tiles."
    return Page("gallery-families", "Every family", summary, [FAMILIES, plate, listed])


def _film(for_videos: Sequence[str], docs: Path) -> Page:
    parts = [FILM, *_strips("gallery/film", film.METHODS, docs)]
    if for_videos:
        parts += ["## Methods made for videos", FOR_VIDEOS, *_strips("gallery/film-videos", for_videos, docs)]
    summary = f"What {len(film.METHODS) + len(for_videos)} methods keep of six frames in which a ball moves."
    return Page("gallery-film", "A film", summary, parts)


def _strips(name: str, shown: Sequence[str], docs: Path) -> list[str]:
    """A figure with a strip of the film for each method, and what they keep of it."""
    frames, moves = images.film()
    reports = film.kept_by(shown, frames)
    facts = {method: film.describe(report, moves) for method, report in reports.items()}
    draw = partial(film.draw, frames, reports, facts)
    listed = "\n".join(f"- `{method}` {said}." for method, said in facts.items())
    return [_save(name, "What methods keep of each frame", draw, docs), listed]


def _front(stills: dict[str, images.Still], docs: Path) -> str:
    """The figures of the front pages; returns that of the photograph."""
    kept = {name: show.kept_of(stills[name]) for name in SCALING}
    for name, scaling in SCALING.items():
        stills[name].image.resize((SIDE, SIDE), scaling).save(docs / f"front/{name}.webp", quality=QUALITY)
        _save(f"front/{name}-kept", "", partial(show.draw_square, stills[name], kept[name][0]), docs)
    _save("covist-show", "", partial(show.draw, stills["scene"], *kept["scene"]), docs, "png")
    photograph = partial(show.draw_unanswered, stills["photograph"], kept["photograph"][0])
    return _save("covist-photograph", PHOTOGRAPHED, photograph, docs)


def _save(name: str, alt: str, draw: Callable[[Theme], Figure], docs: Path, kind: str = "webp") -> str:
    """Write a figure in both themes -> how a page shows the one that fits."""
    options: dict[str, Any] = {"pil_kwargs": {"quality": QUALITY}} if kind == "webp" else {}
    shown = []
    for theme, colours in THEMES.items():
        path = f"{name}-{theme}.{kind}"
        draw(colours).savefig(docs / path, dpi=DPI, facecolor="auto", **options)
        shown.append(f"![{alt}]({path}#only-{theme})")
    return "\n".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", help="names with commas; by default every method of this package")
    named = parser.parse_args().methods
    ours = [name for name, method in methods_for_any_model().items() if method.__module__.startswith("covist.")]
    logging.disable_progress_bar()
    write(named.split(",") if named else ours)


if __name__ == "__main__":
    main()
