"""Where the tokens of an image lie, from the arguments with which a model's processor describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isqrt
from typing import Any

from torch import Tensor

Views = list[tuple[int, int]]
"""Rows and columns of tokens, of each view or frame."""
LARGEST_MERGE = 8
"""Most patches along a token."""


def views_of(arguments: dict[str, Any], counts: Sequence[int], is_video: bool) -> list[Views]:
    """The views of each image or video, which have `counts` tokens each: as an argument says, else square, else a line.

    A guess is taken only if it has as many tokens as the image.
    """
    described = _described(arguments, len(counts), is_video)
    return [
        next((views for views in _guesses(described, number, count) if _size(views) == count), [(1, count)])
        for number, count in enumerate(counts)
    ]


def _guesses(described: list[Callable[[int, int], Views | None]], number: int, count: int) -> Iterator[Views]:
    for guess in described:
        views = guess(number, count)
        if views:
            yield views
    yield [(isqrt(count), isqrt(count))]


def _described(arguments: dict[str, Any], images: int, is_video: bool) -> list[Callable[[int, int], Views | None]]:
    """Functions from the number of an image and its tokens to its views, for each argument that says something."""
    found: list[Callable[[int, int], Views | None]] = []
    pixels: list[Callable[[int, int], Views | None]] = []
    for name, value in arguments.items():
        if not isinstance(value, Tensor) or is_video != ("video" in name):
            continue
        if name.startswith("pixel_values"):
            if value.ndim >= 4:
                pixels.append(_of_shape(*value.shape[-2:]))
        elif value.ndim == 2 and len(value) == images:
            found += _of_numbers(name, value)
        elif value.ndim == 3 and len(value) == images and value.shape[-1] == 2:
            found.append(_of_places(value))
    # The size in pixels is the weakest statement: models may pack images or lay them out otherwise.
    return found + pixels


def _of_numbers(name: str, value: Tensor) -> list[Callable[[int, int], Views | None]]:
    """Of an argument with a row per image: frames, rows and columns; rows and columns; or two pairs of these."""
    if value.shape[1] == 3:
        return [lambda number, count: _merged(value[number].tolist(), count)]
    if value.shape[1] == 4:
        return [lambda number, count: _pairs(value[number].tolist())]
    if value.shape[1] != 2:
        return []
    if name == "image_sizes":  # in pixels
        return [lambda number, count: _of_shape(*value[number].tolist())(number, count)]
    return [lambda number, count: _merged([1, *value[number].tolist()], count)]


def _merged(patches: list[int], count: int) -> Views | None:
    """Views of frames x rows x columns patches, of which several a side make a token; a border may have fewer."""
    frames, rows, columns = patches
    merged = [(-(-rows // merge), -(-columns // merge)) for merge in range(1, LARGEST_MERGE + 1)]
    for moments in (frames, 1):  # some encoders make one of all frames
        view = next((view for view in merged if moments * view[0] * view[1] == count), None)
        if view is not None:
            return [view] * moments
    return None


def _pairs(numbers: list[int]) -> Views:
    first, second = (numbers[0], numbers[1]), (numbers[2], numbers[3])
    return [view for view in (first, second) if min(view) > 0]


def _of_shape(height: int, width: int) -> Callable[[int, int], Views | None]:
    """Of an image in pixels: as many rows and columns as its proportions allow."""

    def views(number: int, count: int) -> Views | None:
        rows = max(1, round((count * height / max(1, width)) ** 0.5))
        return None if count % rows else [(rows, count // rows)]

    return views


def _of_places(places: Tensor) -> Callable[[int, int], Views | None]:
    """Of the column and row of every patch [images, patches, 2]; padding is negative."""

    def views(number: int, count: int) -> Views | None:
        columns, rows = (int(value) + 1 for value in places[number].amax(0))
        return _merged([1, rows, columns], count)

    return views


def _size(views: Views) -> int:
    return sum(rows * columns for rows, columns in views)
