"""DyCoke, first stage: of every four frames one stays whole, and the others keep what differs from an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.frames import by_frame, fit_counts, largest_by_frame, same_place_cosines
from covist.methods.published import register_published

DROPPED = 0.7
"""The published share of the tokens that frames lose which do not stay whole."""


@register_published
class DyCoke(Method):
    name = "dycoke"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        tokens = by_frame(image.signals.embeddings.float(), image.grid)
        compared, places = compared_frames(len(tokens)), tokens.shape[1]
        wanted = wanted_counts(compared, places, count)
        counts = fit_counts([int(own + 1e-9) for own in wanted], wanted, count, most=places)
        return largest_by_frame(-similarity(tokens, compared), counts)


def wanted_counts(compared: Sequence[int | None], places: int, count: int) -> list[float]:
    """Tokens of each frame, `count` together: all of a whole frame and equally many of every other one.

    If these would be fewer than the published share of a whole frame, both shrink together.
    """
    whole = compared.count(None)
    rest = len(compared) - whole
    least = int((1 - DROPPED) * places) / places
    shrunk = count / (whole + least * rest)
    part = max((count - whole * places) / max(1, rest), least * shrunk)
    return [min(places, shrunk) if other is None else part for other in compared]


def compared_frames(frames: int) -> list[int | None]:
    """The frame that each one is compared with; None if it stays whole, like the first of four or a last one alone.

    >>> compared_frames(7)
    [None, 0, 0, 2, None, 4, None]
    """
    last_group = frames // 4 * 4
    return [
        number - 1 if number % 2 else number - 2 if number % 4 == 2 and number < last_group else None
        for number in range(frames)
    ]


def similarity(tokens: Tensor, compared: Sequence[int | None]) -> Tensor:
    """Cosines of tokens [F, n, d] with those of the compared frames -> [F, n].

    A whole frame is compared with the whole frame before it, and the first one with its mean.
    """
    references, before = [], tokens[0].mean(0).expand_as(tokens[0])
    for number, other in enumerate(compared):
        references.append(before if other is None else tokens[other])
        before = tokens[number] if other is None else before
    return same_place_cosines(torch.stack(references), tokens)
