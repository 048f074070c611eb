"""Multidimensional RoPE: which axis of a position each frequency belongs to, found by asking the rotary module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covist.engine.capture import cos_and_sin, twin

SECTIONS = "mrope_section"
"""The attribute by which a rotary module of transformers says that its positions have several axes."""


@dataclass(frozen=True)
class Axes:
    """The axes of a position, and which of them turns each frequency."""

    count: int
    of_frequencies: list[int]


def rotary_axes(decoder: Any) -> Axes | None:
    """The axes of a decoder's positions; None if a position is one number."""
    rotary = next((child for child in decoder.children() if getattr(child, SECTIONS, None)), None)
    return None if rotary is None else axes_of(rotary)


@torch.no_grad()
def axes_of(module: Any) -> Axes | None:
    """The axes of a rotary module's positions; None if a position is one number.

    A token that is at 1 on one axis and at 0 on all others is turned by the frequencies of this axis alone.
    """
    sections = getattr(module, SECTIONS, None)
    if not sections:
        return None
    # Several tables have several sections; they differ in their frequencies, not in the order of their axes.
    kinds = [next(iter(sections))] if isinstance(sections, dict) else []
    axes = len(sections[kinds[0]] if kinds else sections)
    device = next(buffer.device for buffer in module.buffers())
    positions = torch.eye(axes, device=device)[:, None]  # [axes, 1, tokens]
    # a twin, because rotary modules may replace their frequencies while they run
    angles = cos_and_sin(twin(module)(torch.zeros(1, axes, 1, device=device), positions, *kinds))
    if angles is None:
        return None
    return Axes(axes, _per_frequency(torch.atan2(angles[1], angles[0]).reshape(axes, -1).abs()))


def _per_frequency(angles: Tensor) -> list[int]:
    """From angles [tokens, rotary width], where a token turns on its own axis only."""
    owners = angles.argmax(0)
    halves = owners.unflatten(0, (2, -1))
    in_halves = torch.equal(halves[0], halves[1]) or not torch.equal(owners[::2], owners[1::2])
    frequencies: list[int] = (halves[0] if in_halves else owners[::2]).tolist()
    return frequencies
