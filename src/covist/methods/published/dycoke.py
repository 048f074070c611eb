"""DyCoke, first stage: of every four frames one stays whole, and the others keep what differs from an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.frames import by_frame, fit_tokens, largest_by_frame, same_place_cosines
from covist.methods.published import register_published


@register_published
class DyCoke(Method):
    name = "dycoke"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        return choose(by_frame(image.signals.embeddings.float(), image.grid), count)


def choose(tokens: Tensor, count: int) -> Tensor:
    """The tokens [count] of [F, n, d] to keep, increasing."""
    frames, places = tokens.shape[:2]
    if frames == 1:
        return fit_tokens(tokens.new_empty(0, dtype=torch.long), count, -similarity(tokens, [None]).flatten())
    compared = compared_frames(frames)
    whole = [number for number, other in enumerate(compared) if other is None]
    left = count - len(whole) * places
    if left < 0:
        chosen = choose(tokens[whole], count)
        return torch.tensor(whole, device=tokens.device)[chosen // places] * places + chosen % places
    each = left // (frames - len(whole))
    scores = -similarity(tokens, compared)
    kept = largest_by_frame(scores, [places if other is None else each for other in compared])
    return fit_tokens(kept, count, scores.flatten())


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
    """Cosines of tokens [F, n, d] with those of the compared frames; of whole frames with their mean -> [F, n]."""
    means = tokens.mean(1, keepdim=True).expand_as(tokens)
    references = [means[number] if other is None else tokens[other] for number, other in enumerate(compared)]
    return same_place_cosines(torch.stack(references), tokens)
