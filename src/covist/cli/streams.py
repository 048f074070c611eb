"""What `covist show --stream` prints and draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from covist.cli.console import out, print_json
from covist.cli.models import question
from covist.cli.options import ThemeName
from covist.errors import CovistError

if TYPE_CHECKING:
    from PIL import Image

    from covist.request.loading import LoadedModel
    from covist.request.stream import Stream


def film_path(images: list[str] | None, videos: list[str] | None, model: str) -> str | None:
    """The video of `--stream`; None for the bundled film."""
    if images or len(videos or ()) > 1 or not (videos or model == "tiny-video"):
        raise CovistError("--stream needs one --video, a file or a folder of frames, and no --image")
    return videos[0] if videos else None


def open_stream(loaded: LoadedModel, budget: str | None, method: str | None, rate: float) -> Stream:
    from covist.methods.covist_max import CovistMax
    from covist.request.stream import Stream

    if budget is None:
        raise CovistError("--stream needs a --budget: the visual tokens that are held of all frames together")
    return Stream(loaded.model, loaded.processor, budget=budget, rate=rate, method=method or CovistMax.name)


def draw_stream(
    loaded: LoadedModel,
    path: str | None,
    stream: Stream,
    destination: Path,
    prompt: str | None,
    max_new_tokens: int,
    theme: ThemeName | None,
    as_json: bool,
) -> None:
    """Add all frames, ask the question if there is one, and draw what is held then."""
    from covist import viz
    from covist.request.stream import hold
    from covist.request.videos import each_frame
    from covist.viz.theme import THEMES

    def frames() -> Iterator[Image.Image]:
        yield from (
            question(None, None, model=loaded.name).videos[0].frames if path is None else each_frame(path, stream.rate)
        )

    with stream:
        shown = hold(stream, frames)
        answer = None if prompt is None else stream.ask(prompt, max_new_tokens)
    report, title = stream.report, "" if prompt is None else f"{prompt} \N{RIGHTWARDS ARROW} {answer}"
    seconds = [span[(len(span) - 1) // 2] / stream.rate for span in stream.spans]
    colours = viz.LIGHT if theme is None else THEMES[theme.value]
    figure = viz.draw_film(report, viz.seen_views(report, shown), title, str(stream), seconds, colours)
    viz.save_figure(figure, destination)
    if as_json:
        figures = {
            "frames": len(stream),
            "tokens": len(report.kept),
            "spans": [[span.start, span.stop] for span in stream.spans],
            "kept": report.kept_per_frame().tolist(),
            "weight": report.weight_per_frame().tolist(),
        }
        print_json({"model": loaded.name, "prompt": prompt, "answer": answer, "figure": str(destination), **figures})
        return
    if prompt is not None:
        out().print(f"{escape(prompt)} [bold]{escape(answer or '')}[/]")
    out().print(f"{stream}, drawn in [bold]{escape(str(destination))}[/]", highlight=False)
