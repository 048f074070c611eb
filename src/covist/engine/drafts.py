"""Knows when `generate` drafts: the assistant of assisted decoding may be the compressed model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covist.undo import ReplacedMethod


class DraftWatch(ReplacedMethod):
    """Reports through `drafting(True)` and `drafting(False)` when a call of `model.generate` begins and ends to draft.

    transformers gives an assistant the prompt without its image features, and it marks the call in the generation
    settings alone.
    """

    def __init__(self, model: Any, drafting: Callable[[bool], None]):
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def generate(*args: Any, **kwargs: Any) -> Any:
                if not getattr(kwargs.get("generation_config"), "is_assistant", False):
                    return original(*args, **kwargs)
                drafting(True)
                try:
                    return original(*args, **kwargs)
                finally:
                    drafting(False)

            return generate

        super().__init__(model, "generate", wrapper)
