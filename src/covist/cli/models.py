"""What commands need first: a model, images, a question, a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covist.cli.console import note
from covist.cli.options import MetricName, ThemeName
from covist.errors import CovistError

if TYPE_CHECKING:
    from PIL import Image

    from covist.api.setup import Setup
    from covist.budget import Budget
    from covist.eval import Suite
    from covist.loading import Loading
    from covist.request.answer import Answer
    from covist.request.inputs import Request
    from covist.request.loading import LoadedModel
    from covist.request.videos import Video


@dataclass(frozen=True)
class Films:
    """The videos of a command line: their paths, how many frames to take, and the frame rate of folders."""

    paths: Sequence[str] = ()
    frames: int = 16
    rate: float = 2.0

    def load(self) -> list[Video]:
        from covist.request.videos import load_video

        return [load_video(path, self.frames, self.rate) for path in self.paths]


@dataclass(frozen=True)
class UserQuestion:
    """A question and what it is about; images come before videos in the prompt."""

    prompt: str
    images: Sequence[Image.Image]
    videos: Sequence[Video] = ()

    @property
    def shown(self) -> list[Any]:
        """Images, and the frames of each video, in the order of the prompt."""
        return [*self.images, *(list(video.frames) for video in self.videos)]

    def seconds(self, which: int, frames: int) -> list[float] | None:
        """The time of each of the `frames` that the model sees of a video; it may merge several frames into one."""
        if which < len(self.images):
            return None
        seconds = self.videos[which - len(self.images)].seconds
        together = -(-len(seconds) // frames)
        return [seconds[number * together] for number in range(frames)]


NO_FILMS = Films()


def load(name: str, clip: str | None, loading: Loading, setup: Setup | None = None) -> LoadedModel:
    """Load a model as the options say, and the file of `--config` for what they leave open."""
    from transformers.utils import logging

    from covist.request.loading import load_model

    logging.disable_progress_bar()
    return load_model(name, clip, loading.over(None if setup is None else setup.loading))


def question(
    images: list[str] | None, prompt: str | None, films: Films = NO_FILMS, model: str = "tiny"
) -> UserQuestion:
    """The user's images, videos and question, or the bundled example if none is given.

    An embedded model can be asked anything about its own example; with another one, an image was probably forgotten.
    """
    from covist import tiny
    from covist.request.checkpoints import EMBEDDED
    from covist.request.images import load_image
    from covist.request.videos import Video
    from covist.tiny.films import film_demo

    if prompt is not None and not prompt.strip():
        raise CovistError("--prompt is empty")
    if not images and not films.paths:
        if prompt is not None and model not in EMBEDDED:
            raise CovistError(
                "--prompt needs an --image or --video to ask about; give none of them for the bundled example"
            )
        if model == "tiny-video":
            frames, asked, _ = film_demo()
            return UserQuestion(prompt or asked, [], [Video.of(frames)])
        image, asked, _ = tiny.demo("next" if model == "tiny-next" else "tiny")
        return UserQuestion(prompt or asked, [image])
    if prompt is None:
        given = "image" if images else "video"
        raise CovistError(f"--{given} needs a --prompt: the question to ask about the {given}")
    return UserQuestion(prompt, [load_image(path) for path in images or ()], films.load())


def suite_of(name: str | None, data: str | None, metric: MetricName, films: Films) -> Suite:
    """The questions of a file, or a suite by its name."""
    from covist.eval import load_suite, read_data

    if data is not None and name is not None:
        raise CovistError("give either --suite or --data, not both")
    if data is not None:
        return read_data(data, metric.value, frames=films.frames, rate=films.rate)
    if metric is not MetricName.auto:
        raise CovistError("--metric is for --data; the bundled suites have their own")
    return load_suite(name or "scenes")


def request(loaded: LoadedModel, asked: UserQuestion) -> Request:
    """The model's inputs; prints a note about words of the question that are not in its vocabulary."""
    from covist.request.inputs import prepare, unknown_words

    made = prepare(loaded, asked.images, asked.prompt, videos=asked.videos)
    if words := unknown_words(loaded, asked.prompt):
        note(f"not in the model's vocabulary: {', '.join(words)}")
    return made


def budget_notes(answer: Answer, budget: Budget | None) -> list[str]:
    """What to say about images and videos that did not get the budget exactly."""
    from covist.budget import Count
    from covist.request.budgets import capped_note, distinct_notes, is_capped, reach

    if answer.report is None or budget is None:
        return []
    follows, shown = not budget.says_count, answer.report.visuals
    reaches = [
        reach(
            answer.method,
            Count(image.budget) if follows else budget,
            image.tokens,
            len(image.tokens_per_layer),
            1 if follows else image.frames,
        )
        for image in shown
        if image.missed is None
    ]
    capped = sum(is_capped(budget, image) for image in shown)
    return [*distinct_notes(reaches), *([capped_note(budget, capped, len(shown))] if capped else [])]


def certificates(answer: Answer) -> list[str]:
    """How well each image and video is represented, one line each, where the method measures it."""
    shown = () if answer.report is None else answer.report.visuals
    many = len(shown) > 1
    return [
        (f"{image.kind} {place}: " if many else "") + str(image.certificate)
        for place, image in enumerate(shown, 1)
        if image.certificate is not None
    ]


def draw(
    answer: Answer,
    asked: UserQuestion,
    destination: Path,
    which: int = 0,
    overlay: bool = False,
    theme: ThemeName | None = None,
) -> None:
    """Write a figure of what was kept of image or video number `which` of the prompt.

    An HTML page shows them all. Without a theme it is light or dark as the browser is, and a figure is light.
    """
    from covist import viz
    from covist.viz.files import PAGES
    from covist.viz.theme import THEMES

    if answer.report is None:
        raise CovistError(f"{answer.method} compresses nothing, so there is nothing to draw")
    if not 0 <= which < len(asked.shown):
        raise CovistError(f"there is no image or video number {which + 1}; the prompt has {len(asked.shown)}")
    colours = None if theme is None else THEMES[theme.value]
    if destination.suffix.lower() in PAGES:
        title = f"{asked.prompt} \N{RIGHTWARDS ARROW} {answer.text}"
        answer.report.save(destination, asked.shown, title=title, theme=colours)
        return
    drawn = answer.report.visuals[which]
    figure = viz.draw_answer(
        drawn,
        asked.shown[which],
        method=answer.method,
        prompt=asked.prompt,
        answer=answer.text,
        overlay=overlay,
        seconds=asked.seconds(which, drawn.frames),
        theme=colours or viz.LIGHT,
    )
    viz.save_figure(figure, destination)
