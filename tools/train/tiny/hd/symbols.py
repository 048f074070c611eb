"""Symbols: visual tokens made from what a patch really shows, not from the tower's features.

The decoder learns language on them before the tower is trained. Then the projector learns to turn the tower's features
into the same vectors, and both are trained together. Nothing of this is part of the exported model.
"""

import torch
from torch import Tensor, nn

from covist.tiny.model import position_waves
from train.tiny.data import CLASSES
from train.tiny.hd.views import VIEW_GRID, VIEW_PATCHES

_WAVES = 32
_BLURRED = ("size", "char", "role")  # attributes that the base view is too coarse to show


class Symbols(nn.Module):
    """The vector of a patch: the sum of vectors for its thing's attributes, its place in the view, and the view."""

    waves: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.classes = nn.ModuleList(nn.Embedding(len(values) + 1, width) for values in CLASSES.values())
        self.place, self.view = nn.Linear(_WAVES, width), nn.Embedding(2, width)
        self.register_buffer("waves", position_waves(_WAVES, VIEW_GRID))  # [256, waves]

    def forward(self, things: Tensor, source: Tensor) -> Tensor:
        """Vectors [n, t, width] of `things` [n, t, columns] that patches `source` [n, t] of (view, patch) show."""
        base = source < VIEW_PATCHES
        total = self.place(self.waves[source % VIEW_PATCHES]) + self.view(base.long())
        for column, (name, table) in enumerate(zip(CLASSES, self.classes, strict=True)):
            values = things[..., column]
            total = total + table(torch.where(base, 0, values) if name in _BLURRED else values)
        return total
