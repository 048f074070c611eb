"""Masks of a stage for decoders in which some layers have no rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from covist.contract.method import AttentionRule


class Mask(Protocol):
    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer that carry its mask."""


class LayerMasks:
    """The masks that `build` makes of a rule; where a layer has no positions, of the rule without its distance."""

    def __init__(self, rule: AttentionRule | None, build: Callable[[AttentionRule | None], Mask]):
        self._mask = self._without_distance = build(rule)
        self._layers = frozenset[int]() if rule is None else rule.layers_without_distance
        if rule is not None and self._layers:
            self._without_distance = build(replace(rule, distance=None))

    def for_layer(self, layer: int, like: Tensor) -> dict[str, Any]:
        """Keyword arguments of a layer that carry its mask, in the form its attention backend takes."""
        return (self._without_distance if layer in self._layers else self._mask).for_layer(layer, like)
