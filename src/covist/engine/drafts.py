"""Detects when `generate` drafts: in assisted decoding, the assistant may be the compressed model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covist.undo import ReplacedMethod


class DraftWatch(ReplacedMethod):
    """Calls `drafting(True)` and `drafting(False)` when a drafting call of `model.generate` begins and ends.

    transformers passes the prompt to an assistant without image features, and marks such a call only in its
    generation settings.
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
