"""Pixtral: LLaVA's class with a Pixtral vision tower; every patch is a token."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covist.families.folding import ModuleCall
from covist.families.generic import Generic
from covist.families.registry import register_family
from covist.plan import Geometry


class PixtralTowerFamily(Generic):
    """Images of any size. The prompt has a row break after every row of tokens; it counts as text and is kept."""

    tower_types = ("pixtral",)
    processor = "PixtralProcessor"
    video = "none"
    encoder_signal = "incoming attention of the layer that feeds the projector"

    def spans(self, output: Any, calls: list[ModuleCall]) -> list[Tensor]:
        """Images of equal size that come without `image_sizes` are returned in one piece."""
        spans = super().spans(output, calls)
        images = max(len(call.given) for call in calls if call.given.ndim == 4)
        return [image for span in spans for image in span.chunk(images // len(spans))]


@register_family
class Pixtral(PixtralTowerFamily):
    name = "pixtral"
    model_classes = ("LlavaForConditionalGeneration",)
    token_count = "one per 16 x 16 pixels, plus row breaks"
    presets = (  # 1024 x 1024 pixels, the largest image that it accepts
        Geometry("pixtral-12b", 40, 5120, 14336, 32, 8, 4096, markers=63, budgets=(1024, 512, 256), head_dim=128),
    )
