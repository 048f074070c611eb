"""What a method reads of a decoder, and what happens if a layer cannot be read.

A reduction inside the decoder moves to the next layer that can be read, as linear attention and convolutions between
attention layers require. If there is none, the method is refused by name.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from covist.contract.decoder import Decoder
from covist.contract.method import Method
from covist.errors import CovistError
from covist.schedule import Schedule

LAYER_NEEDS = {"decoder-attention": "the attention", "decoder-keys": "keys or values"}
"""Needs that only a readable layer meets, and what such a method reads."""

EXAMPLE = {"budget": 64, "tokens": 576}
"""An image whose schedule shows where a method acts."""


def check_method(method: Method, decoder: Decoder) -> None:
    """Refuse a method that reads layers inside the decoder which cannot be read, with one line."""
    readable_stages(method, decoder, method.schedule(decoder.layers, **EXAMPLE))


def readable_schedule(method: Method, decoder: Decoder, budget: int, tokens: int) -> Schedule:
    """A method's schedule in which every reduction reads a layer that can be read.

    Where reductions had to move to later layers, the counts are smaller, so that the layer average is the budget.
    """
    schedule = method.schedule(decoder.layers, budget, tokens)
    moved = readable_stages(method, decoder, schedule)
    if moved.stages == schedule.stages or method.counts == "nominal":
        return moved

    wanted, low, high = schedule.counted_mean, 1, budget
    best = moved
    while low <= high:
        middle = (low + high) // 2
        tried = readable_stages(method, decoder, method.schedule(decoder.layers, middle, tokens))
        if abs(tried.counted_mean - wanted) <= abs(best.counted_mean - wanted):
            best = tried
        low, high = (middle + 1, high) if tried.counted_mean <= wanted else (low, middle - 1)
    return best


def readable_stages(method: Method, decoder: Decoder, schedule: Schedule) -> Schedule:
    """A schedule whose reductions inside the decoder are moved to layers that can be read.

    If two fall on one layer, the later one counts.
    """
    stages = {depth and readable_depth(method, decoder, depth): count for depth, count in schedule.stages}
    return replace(schedule, stages=tuple(stages.items()))


def readable_depth(method: Method, decoder: Decoder, depth: int) -> int:
    """The first layer from `depth` on before which a method can reduce inside a decoder."""
    read = next((LAYER_NEEDS[need] for need in LAYER_NEEDS if need in method.needs), None)
    if read is None or depth >= decoder.layers:  # after the last layer nothing is reduced
        return depth
    layers = range(depth, decoder.layers)
    found = next((layer for layer in layers if decoder.reads(method.observed_layer(layer))), None)
    if found is None:
        wanted = method.observed_layer(depth)
        raise CovistError(
            f"{method.name} reads {read} of layer {wanted}, which cannot be read in {decoder.name}: "
            f"{decoder.unread[wanted]}; choose a method that acts before the decoder (`covist methods --acts before`)"
        )
    return found


def nearest_frequencies(decoder: Decoder, layer: int) -> Tensor:
    """RoPE frequencies of a layer, or of the nearest one that rotates; one zero if none is known to."""
    for other in sorted(range(decoder.layers), key=lambda other: abs(other - layer)):
        found = decoder.frequencies(other)
        if found is not None:
            return found
    return torch.zeros(1)
