"""LLaVA-1.5."""

from __future__ import annotations

from typing import Any

from support.case import Case
from support.llava import build_llava, processor
from support.slow_llava import SlowLlava


class SlowFromInputs(SlowLlava):
    """Takes the processor's output, as the slow references of the other families do."""

    def encode(self, shown: Any) -> Any:
        return super().encode(shown["pixel_values"])


CASES = (
    Case(
        name="llava-1.5 multi-head",
        family="llava-1.5",
        model_class="LlavaForConditionalGeneration",
        build=build_llava,
        processor=processor,
        image="<image> ",
        turn="USER: {} ASSISTANT:",
        slow=SlowFromInputs,
    ),
)
