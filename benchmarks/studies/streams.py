"""Streams on films: what is held after the last frame, against a window of the last frames that holds as much.

Every film is added frame by frame, and its questions are asked after the last frame. A question is *recent* if what it
is about is shown in the window's frames and one frame is enough to answer it, *old* if it is only shown before them,
*across* otherwise.

    PYTHONPATH=benchmarks python -m studies.streams
    PYTHONPATH=benchmarks python -m studies.streams --after 48 --families digit,direction

With `--after`, so many frames of the empty ground follow the film before it is asked about, and everything is old; of
some families of questions, these change the answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import covist
from covist.contract.views import ImageContext
from covist.eval.statistics import Tally, accuracy, difference
from covist.eval.suite import FILM_SEEDS
from covist.eval.tables import markdown_table
from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_coverage
from covist.methods.streaming import StreamState
from covist.request.decoding import generate
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel
from covist.request.videos import Video
from covist.tiny.films import FILM_FAMILIES, film_frames, film_questions_for, sample_film
from covist.tiny.films.scenes import FRAMES, Film
from covist.tiny.questions import Question
from covist.units import interval, percent

GROUPS = ("recent", "old", "across")
ONE_FRAME = ("place", "change", "digit")
"""Families of which one frame is enough."""
PER_FRAME, NEW_TOKENS = 16, 4

Answerer = Callable[[Sequence[Image.Image], Sequence[str]], list[str]]


class LastFrames(covist.Method):
    """The newest tokens, at their positions."""

    name = "last-frames"

    def select(self, image: ImageContext, count: int) -> Tensor:
        return torch.arange(image.grid.size - count, image.grid.size)


class RecentShare(StreamState):
    """Another rule for age: the newest moments, `half_life` of them, have half of the budget, older ones the rest."""

    def chosen(self, coverage: ContentCoverage, count: int, half_life: float) -> Tensor:
        border = self.cells * max(0, len(self.lengths) - int(half_life))
        old, new = ((self.home < border).nonzero()[:, 0], (self.home >= border).nonzero()[:, 0])
        share = min(len(new), max(count // 2, count - len(old)))
        kept = [_covering(coverage, side, room) for side, room in ((old, count - share), (new, share))]
        return torch.cat(kept)


def _covering(coverage: ContentCoverage, side: Tensor, count: int) -> Tensor:
    if not count:
        return side[:0]
    own = coverage.affinity[side][:, side].contiguous()
    return side[greedy_coverage(own, coverage.omega[side], side.new_empty(0), count)]


# -- who answers -------------------------------------------------------------------------------------------------------


def plain(loaded: LoadedModel, frames: int | None = None) -> Answerer:
    """The plain model on all frames, or on the last ones."""
    return lambda shown, questions: _answers(loaded, shown if frames is None else shown[-frames:], questions)


def compressed(loaded: LoadedModel, method: str | covist.Method, budget: int) -> Answerer:
    """The whole film at once, at a budget."""

    def answer(shown: Sequence[Image.Image], questions: Sequence[str]) -> list[str]:
        with covist.compress(loaded.model, loaded.processor, method=method, budget=f"total:{budget}"):
            return _answers(loaded, shown, questions)

    return answer


def _answers(loaded: LoadedModel, shown: Sequence[Image.Image], questions: Sequence[str]) -> list[str]:
    requests = [prepare(loaded, [], question, videos=[Video.of(shown)]) for question in questions]
    written = [generate(loaded.model, one.inputs(loaded.model), NEW_TOKENS) for one in requests]
    return [loaded.processor.batch_decode(one, skip_special_tokens=True)[0].strip() for one in written]


class Remembering(covist.Stream):
    """A stream whose frames are encoded once for all streams that are compared."""

    known: ClassVar[dict[bytes, tuple[StreamState, Tensor, bool]]] = {}
    rule: type[StreamState] = StreamState

    def _encoded(self, frames: Sequence[Image.Image]) -> StreamState:
        key = frames[0].tobytes()
        if key not in self.known:
            self.known[key] = super()._encoded(frames), self._markers, self._stacked
        state, self._markers, self._stacked = self.known[key]
        return self.rule(**vars(state))


def streaming(loaded: LoadedModel, budget: int, half_life: float, rule: type[StreamState] = StreamState) -> Answerer:
    def answer(shown: Sequence[Image.Image], questions: Sequence[str]) -> list[str]:
        with Remembering(loaded.model, loaded.processor, budget=budget, half_life=half_life) as held:
            held.rule = rule
            for frame in shown:
                held.add(frame)
            return [held.ask(question, NEW_TOKENS) for question in questions]

    return answer


# -- what is asked -----------------------------------------------------------------------------------------------------


def group(question: Question, window: int) -> str:
    """Whether a question is about the last frames, `window` of them, or about what was before."""
    border, seen = FRAMES - window, [glimpse.frames for glimpse in question.about]
    if seen and all(max(frames) < border for frames in seen):
        return "old"
    inside = all(min(frames) >= border or question.family == "change" and max(frames) == FRAMES - 1 for frames in seen)
    return "recent" if question.family in ONE_FRAME and inside else "across"


def shown_of(film: Film, after: int) -> list[Image.Image]:
    ground = film_frames(replace(film, objects=(), digits=()))
    return [*film_frames(film), *(ground[number % FRAMES] for number in range(after))]


def tallies(answerers: dict[str, Answerer], seeds: Sequence[int], budget: int, after: int, families: set[str]) -> dict:
    """Right answers and questions of every film and group, for everybody who answers."""
    right = {name: np.zeros((len(seeds), len(GROUPS))) for name in answerers}
    asked = np.zeros((len(seeds), len(GROUPS)))
    for row, seed in enumerate(seeds):
        film = sample_film(seed)
        questions = [one for one in film_questions_for(film) if one.family in families]
        columns = [GROUPS.index("old" if after else group(one, budget // PER_FRAME)) for one in questions]
        np.add.at(asked[row], columns, 1)
        shown = shown_of(film, after)
        Remembering.known.clear()
        for name, answer in answerers.items():
            given = answer(shown, [one.question for one in questions])
            hits = [one.answer == said for one, said in zip(questions, given, strict=True)]
            np.add.at(right[name][row], columns, hits)
    return {name: Tally(hits, asked) for name, hits in right.items()}


def table(found: dict[str, Tally], against: str) -> str:
    rows = []
    for name, tally in found.items():
        cells = [name]
        for column, _ in enumerate(GROUPS):
            own, window = (Tally(one.right[:, [column]], one.asked[:, [column]]) for one in (tally, found[against]))
            if not own.asked.sum():
                cells += ["", ""]
                continue
            estimate, gap = accuracy(own), difference(own, window, Tally(own.asked, own.asked))
            cells.append(f"{percent(estimate.value)} [{interval(estimate.interval)}]")
            cells.append(f"{percent(gap.value, signed=True)} [{interval(gap.interval, signed=True)}]")
        rows.append(cells)
    heads = [f"{name}, {int(found[against].asked.sum(0)[column])} questions" for column, name in enumerate(GROUPS)]
    return markdown_table(["", *(cell for head in heads for cell in (head, "against the window"))], rows)


def main(arguments: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--budget", type=int, default=64)
    options.add_argument("--limit", type=int, default=200, help="films, all of the development half")
    options.add_argument("--after", type=int, default=0, help="empty frames after each film")
    options.add_argument("--families", default=",".join(FILM_FAMILIES))
    options.add_argument("--half-lives", default="inf,16,8,4,2", help="rules for age that are compared")
    options.add_argument("--recent", default="4", help="moments that have half of the budget by another rule")
    given = options.parse_args(arguments)
    loaded = covist.load_model("tiny-video")
    window = given.budget // PER_FRAME
    answerers = {"window": plain(loaded, window)}
    if not given.after:
        answerers |= {
            "all frames, uncompressed": plain(loaded),
            "window at its positions in the film": compressed(loaded, LastFrames(), given.budget),
            "covist-max, all frames at once": compressed(loaded, "covist-max", given.budget),
        }
    for half_life in map(float, given.half_lives.split(",")):
        answerers[f"stream, half-life {half_life:g}"] = streaming(loaded, given.budget, half_life)
    for moments in filter(None, given.recent.split(",")):
        rule = streaming(loaded, given.budget, float(moments), RecentShare)
        answerers[f"stream, half of it for the last {moments} moments"] = rule
    seeds, families = FILM_SEEDS[::2][: given.limit], set(given.families.split(","))
    print(table(tallies(answerers, seeds, given.budget, given.after, families), "window"))


if __name__ == "__main__":
    main()
