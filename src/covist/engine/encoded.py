"""Signals of images, kept from their encoding until the prompts that use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any
from weakref import ReferenceType, ref

from covist.contract.signals import ImageSignals


class EncodedImages:
    """Keeps signals until a prompt has brought their features, and after that as long as the caller keeps the features.

    `generate` encodes before it prefills, and without a cache it passes the same features again; a caller may encode
    once for several prompts. If a forward call encodes its own images, nothing is kept.
    """

    def __init__(self) -> None:
        self._fresh: deque[list[ImageSignals]] = deque(maxlen=2)  # `generate` encodes images, then videos
        self._held: dict[int, tuple[ReferenceType[Any], list[ImageSignals]]] = {}  # by the identity of features

    @property
    def awaited(self) -> bool:
        """Whether the features of some images have not yet come with a prompt."""
        return bool(self._fresh)

    def add(self, signals: list[ImageSignals]) -> None:
        """Add the signals of images that were just encoded."""
        self._fresh.append(signals)

    def all(self) -> list[ImageSignals]:
        """All signals whose features a prompt may bring, latest first."""
        held = [signals for _, signals in self._held.values()]
        return [image for signals in reversed([*held, *self._fresh]) for image in signals]

    def brought(self, features: Mapping[str, Any]) -> None:
        """Note that a prompt came with all fresh images; `features` are those that the caller holds, by modality."""
        for signals in self._fresh:
            own = features.get(signals[0].modality) if signals else None
            if own is not None:
                self._hold(own, signals)
        self._fresh.clear()

    def _hold(self, features: Any, signals: list[ImageSignals]) -> None:
        key, held = id(features), self._held
        _, before = held.get(key, (None, []))
        held[key] = (ref(features, lambda _: held.pop(key, None)), [*before, *signals])
