"""Rotary position embedding: rotated pairs are halves or neighbours; further dimensions may pass through unchanged."""

from typing import Literal

import torch
from torch import Tensor

Pairing = Literal["halves", "neighbours"]
"""Of the w rotated dimensions, whether j is paired with j + w/2, or 2j with 2j + 1."""


def rotate(states: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing = "halves") -> Tensor:
    """Apply RoPE to the first dimensions of states [..., head width] in float32.

    cos and sin [..., w] hold an angle for each rotated dimension and broadcast against the states.
    """
    states = states.float()
    cos, sin = (part.to(states.device, torch.float32) for part in (cos, sin))
    turning, passing = states[..., : cos.shape[-1]], states[..., cos.shape[-1] :]
    if pairing == "halves":
        first, second = turning.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
    else:
        turned = torch.stack([-turning[..., 1::2], turning[..., ::2]], dim=-1).flatten(-2)
    rotated = turning * cos + turned * sin
    return torch.cat([rotated, passing], dim=-1) if passing.shape[-1] else rotated


def interleaved(angles: Tensor) -> Tensor:
    """Angles laid out for halves [..., w], rearranged for neighbours: each one twice in a row."""
    return angles[..., : angles.shape[-1] // 2].repeat_interleave(2, dim=-1)


def in_halves(values: Tensor, rotated: int, pairing: Pairing) -> Tensor:
    """Values per dimension [..., head width] in an order where j and j + half always form a pair.

    Dimensions beyond the `rotated` ones are paired after the rotated pairs, as halves of the rest.
    """
    turning, passing = values[..., :rotated], values[..., rotated:]
    pairs = turning.unflatten(-1, (-1, 2)).unbind(-1) if pairing == "neighbours" else turning.chunk(2, dim=-1)
    return torch.cat(
        [part for both in zip(pairs, passing.tensor_split(2, dim=-1), strict=True) for part in both], dim=-1
    )
