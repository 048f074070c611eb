"""A camera that never stops: frames come one by one, 64 visual tokens are held, and questions come at any moment.

The embedded model needs no download; it watches rendered films:

    python examples/stream.py

A model and frames of your own, a file or a folder:

    python examples/stream.py --model Qwen/Qwen3-VL-4B-Instruct --video clip.mp4 --budget 2048
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from PIL import Image

import covist
from covist.request.videos import each_frame


def watch(
    model: Any, processor: Any, frames: Iterable[Image.Image], question: str, every: int = 16, **options: Any
) -> Iterator[tuple[str, str]]:
    """What is held, and the answer to a question, after every so many frames."""
    with covist.Stream(model, processor, **options) as stream:
        for frame in frames:
            stream.add(frame)
            if len(stream) % every == 0:
                yield str(stream), stream.ask(question, max_new_tokens=32)


def rendered(films: int) -> Iterator[Image.Image]:
    """Films of the embedded model, one after the other."""
    for seed in range(films):
        yield from covist.tiny.films.film_frames(covist.tiny.films.sample_film(seed))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="tiny-video")
    options.add_argument("--video", help="a file, or a folder of images in the order of their names")
    options.add_argument("--budget", type=int, default=64)
    options.add_argument("--question", default="what is the last digit?")
    given = options.parse_args()
    model, processor, _ = covist.load_model(given.model)
    frames = rendered(4) if given.video is None else each_frame(given.video)
    for held, answer in watch(model, processor, frames, given.question, budget=given.budget):
        print(f"{held}\n  {given.question} {answer}")


if __name__ == "__main__":
    main()
