"""Signals of images between their encoding and the prompts that they come with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import ReferenceType, ref

from covist.contract.signals import ImageSignals


class EncodedImages:
    """Signals are kept until a prompt has brought their features, and then as long as the caller keeps those.

    `generate` encodes before it prefills, and hands the same features over again where it has no cache; a caller may
    encode once for several prompts. Where a forward call encodes for itself, nothing stays behind.
    """

    def __init__(self) -> None:
        self._fresh: deque[list[ImageSignals]] = deque(maxlen=2)  # `generate` encodes images, then videos
        self._held: dict[int, tuple[ReferenceType[Any], list[ImageSignals]]] = {}  # by the identity of features

    @property
    def awaited(self) -> bool:
        """Whether features have yet to come with a prompt."""
        return bool(self._fresh)

    def add(self, signals: list[ImageSignals]) -> None:
        """Signals of the images that were encoded just now."""
        self._fresh.append(signals)

    def all(self) -> list[ImageSignals]:
        """All signals whose features a prompt may bring; the latest first."""
        held = [signals for _, signals in self._held.values()]
        return [image for signals in reversed([*held, *self._fresh]) for image in signals]

    def brought(self, features: Mapping[str, Any]) -> None:
        """A prompt came with all fresh images; `features` are what the caller holds of them, by modality."""
        for signals in self._fresh:
            own = features.get(signals[0].modality) if signals else None
            if own is not None:
                self._hold(own, signals)
        self._fresh.clear()

    def _hold(self, features: Any, signals: list[ImageSignals]) -> None:
        key, held = id(features), self._held
        _, before = held.get(key, (None, []))
        held[key] = (ref(features, lambda _: held.pop(key, None)), [*before, *signals])
