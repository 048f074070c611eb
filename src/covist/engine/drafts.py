"""Knows when `generate` drafts: the assistant of assisted decoding may be the compressed model itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class DraftWatch:
    """Reports through `drafting(True)` and `drafting(False)` when a call of `model.generate` begins and ends to draft.

    transformers gives an assistant the prompt without its image features, and it marks the call in the generation
    settings alone. The wrapper is an instance attribute in front of the class's method, so removal is exact.
    """

    def __init__(self, model: Any, drafting: Callable[[bool], None]):
        original = model.generate

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            if not getattr(kwargs.get("generation_config"), "is_assistant", False):
                return original(*args, **kwargs)
            drafting(True)
            try:
                return original(*args, **kwargs)
            finally:
                drafting(False)

        self._model = model
        self._before = {"generate": model.__dict__["generate"]} if "generate" in model.__dict__ else {}
        model.generate = generate

    def remove(self) -> None:
        self._model.__dict__.pop("generate", None)
        self._model.__dict__.update(self._before)
