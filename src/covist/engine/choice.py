"""The settings of a call: the handle's, or others that its thread has chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from covist.engine.attention import BiasedAttention
from covist.engine.prefill import Prefill
from covist.engine.settings import Settings


@dataclass(frozen=True, eq=False)
class Variant:
    """Settings, the attention that follows from them, and a callback for every finished prefill with images."""

    settings: Settings
    attention: BiasedAttention
    finished: Callable[[Prefill], None]

    @classmethod
    def of(cls, settings: Settings, finished: Callable[[Prefill], None]) -> Variant:
        rule = settings.method.attention_rule(settings.decoder)
        return cls(settings, BiasedAttention(settings.decoder, rule), finished)


class Choice(threading.local):
    """The variant of a thread's calls. `__init__` runs once per thread, so a choice does not affect other threads."""

    def __init__(self, default: Variant):
        self._chosen: list[Variant | None] = [default]

    @property
    def is_on(self) -> bool:
        """Whether calls of this thread are compressed."""
        return self._chosen[-1] is not None

    @property
    def variant(self) -> Variant:
        chosen = self._chosen[-1]
        assert chosen is not None, "only compressed calls ask for it"
        return chosen

    @contextmanager
    def using(self, variant: Variant | None) -> Iterator[None]:
        """Choose a variant for the duration of a `with` block; None leaves calls uncompressed."""
        self._chosen.append(variant)
        try:
            yield
        finally:
            self._chosen.pop()
