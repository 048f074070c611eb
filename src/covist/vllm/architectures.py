"""Which families vLLM serves with compression, and under which names of model classes."""

from __future__ import annotations

from covist.errors import CovistError

ARCHITECTURES = {
    "llava-1.5": "CovistLlavaForConditionalGeneration",
    "llava-next": "CovistLlavaNextForConditionalGeneration",
    "qwen2.5-vl": "CovistQwen2_5_VLForConditionalGeneration",
}
"""Family -> what the plugin registers for it, and what "architectures" in --hf-overrides names."""


def architecture_for(family: str) -> str:
    """The model class that serves a family; one line says which are served where it is none of them."""
    if family not in ARCHITECTURES:
        raise CovistError(
            f"vLLM: models of the family {family} are not served with compression, only {', '.join(ARCHITECTURES)}; "
            "`covist serve` takes every family"
        )
    return ARCHITECTURES[family]
