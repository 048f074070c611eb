"""The settings of a call: the handle's, or others that its thread has chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from covist.budget import Budget
from covist.contract.family import Family
from covist.contract.instruction import TextSpace
from covist.contract.method import AttentionRule, Method
from covist.engine.decoder import FrozenDecoder
from covist.engine.question import InstructionReader
from covist.report.pixels import Preprocessing

if TYPE_CHECKING:
    from covist.engine.prefill import Prefill


class Rules:
    """The attention rule of each method on one decoder; made again after its weights or its rotation have changed."""

    def __init__(self, decoder: FrozenDecoder):
        self._decoder = decoder
        self._made: WeakKeyDictionary[Method, AttentionRule | None] = WeakKeyDictionary()

    def of(self, method: Method) -> AttentionRule | None:
        made = self._made
        if method not in made:
            # Tensors of inference mode could not take part in a later backward pass.
            with torch.inference_mode(False), torch.no_grad():
                made[method] = method.attention_rule(self._decoder)
        return made[method]

    def follow(self) -> None:
        """Read the decoder again if its weights have changed, as a prefill must."""
        if self._decoder.weights_changed():
            self.refresh()

    def follow_rotation(self) -> None:
        """Make the rules again if the decoder has changed its frequencies, as dynamic scaling does within a call."""
        if self._decoder.rotation_changed():
            self._made = WeakKeyDictionary()

    def refresh(self) -> None:
        with torch.inference_mode(False):
            self._decoder.refresh()
        self._made = WeakKeyDictionary()  # replaced, because other threads may be reading it


@dataclass
class CompressionSettings:
    """The model family, method, decoder and options that a call is compressed with."""

    family: Family
    method: Method
    decoder: FrozenDecoder
    reader: InstructionReader
    rules: Rules
    text_tower: TextSpace | None
    budget: Budget
    min_coverage: float | None = None  # an image whose first reduction covers less runs uncompressed
    max_visual_tokens: int | None = None  # most visual tokens of a prompt in any layer
    preprocessing: Preprocessing = Preprocessing()  # of the images, if the processor is known
    finished: Callable[[Prefill], None] | None = None  # called after every prefill with images

    @property
    def rule(self) -> AttentionRule | None:
        return self.rules.of(self.method)


class ThreadSettings(threading.local):
    """The settings of a thread's calls. `__init__` runs once per thread, so a choice does not affect other threads."""

    def __init__(self, default: CompressionSettings):
        self._chosen: list[CompressionSettings | None] = [default]

    @property
    def settings(self) -> CompressionSettings | None:
        """None if calls of this thread are not compressed."""
        return self._chosen[-1]

    @contextmanager
    def using(self, settings: CompressionSettings | None) -> Iterator[None]:
        """Choose settings for the duration of a `with` block; None leaves calls uncompressed."""
        depth = len(self._chosen)
        self._chosen.append(settings)
        try:
            yield
        finally:
            del self._chosen[depth:]
