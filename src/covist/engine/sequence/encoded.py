"""Signals of images, kept from their encoding until the prompts that use them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

from covist.contract.signals import ImageSignals

KEPT = 16
"""Encodings that wait for a prompt; a caller who never prompts must not fill the memory."""


class EncodedImages:
    """Keeps signals until a prompt has brought their features, and after that as long as the caller keeps the features.

    `generate` encodes before it prefills, and without a cache it passes the same features again; a caller may encode
    once for several prompts, image by image, or in another thread. If a forward call encodes its own images, nothing
    is kept.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finaliser may run while it is held
        self._fresh: deque[tuple[int, list[ImageSignals]]] = deque(maxlen=KEPT)  # (thread, signals)
        self._held: dict[int, tuple[ReferenceType[Any], list[ImageSignals]]] = {}  # by the identity of features
        self._apart = threading.local()

    @property
    def awaited(self) -> bool:
        """Whether features that this thread has encoded have not yet come with a prompt."""
        here = threading.get_ident()
        return any(thread == here for thread, _ in tuple(self._fresh))

    def add(self, signals: list[ImageSignals]) -> None:
        """Add the signals of images that were just encoded."""
        apart: list[ImageSignals] | None = getattr(self._apart, "signals", None)
        if apart is not None:
            apart += signals
            return
        with self._lock:
            self._fresh.append((threading.get_ident(), signals))

    @contextmanager
    def apart(self) -> Iterator[list[ImageSignals]]:
        """The signals of what this thread encodes in a `with` block, for which no prompt is coming."""
        self._apart.signals = signals = list[ImageSignals]()
        try:
            yield signals
        finally:
            self._apart.signals = None

    def all(self) -> list[ImageSignals]:
        """All signals whose features a prompt may bring: this thread's latest first, then those of other threads."""
        here = threading.get_ident()
        with self._lock:
            fresh = sorted(self._fresh, key=lambda entry: entry[0] == here)
            known = [*(signals for _, signals in self._held.values()), *(signals for _, signals in fresh)]
        return [image for signals in reversed(known) for image in signals]

    def brought(self, used: Iterable[ImageSignals], features: Mapping[str, Any]) -> None:
        """A prompt came with these images; `features` are those that the caller holds, by modality.

        What this thread encoded before and the prompt did not use is forgotten, too: its features are not coming.
        """
        members, here = {id(signals) for signals in used}, threading.get_ident()
        with self._lock:
            left: deque[tuple[int, list[ImageSignals]]] = deque(maxlen=KEPT)
            for thread, signals in self._fresh:
                if thread != here and members.isdisjoint(map(id, signals)):
                    left.append((thread, signals))
                elif signals and features.get(signals[0].modality) is not None:
                    self._hold(features[signals[0].modality], signals)
            self._fresh = left

    def _hold(self, features: Any, signals: list[ImageSignals]) -> None:
        key, held = id(features), self._held
        _, before = held.get(key, (None, []))
        held[key] = (ref(features, lambda _: held.pop(key, None)), [*before, *signals])
