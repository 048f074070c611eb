"""Qwen3-VL, dense or of experts: DeepStack features for the first decoder layers, interleaved 3-D positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from covist.errors import CovistError
from covist.families.qwen_tower import QwenTowerFamily
from covist.families.registry import register_family


@register_family
class Qwen3VL(QwenTowerFamily):
    name = "qwen3-vl"
    model_classes = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
    companion_arguments = ("visual_pos_masks", "deepstack_visual_embeds")

    def __init__(self, model: nn.Module):
        super().__init__(model)
        levels, layers = len(self.base.visual.deepstack_visual_indexes), len(self.decoder.layers)
        if levels >= layers:
            raise CovistError(
                f"{levels} DeepStack levels for {layers} decoder layers: the features of a level enter the layer after "
                "its own, so that there must be more layers than levels"
            )

    def companions(self, output: Any, number: int) -> dict[int, Tensor]:
        """A level is added to what its decoder layer returns, that is before the next one."""
        levels = output.deepstack_features if hasattr(output, "deepstack_features") else output[-1]
        return {level + 1: images[number].detach() for level, images in enumerate(levels)}

    def rotary_axes(self) -> Sequence[int]:
        """Time, height and width take turns; time has what is left when height and width have had their share."""
        rotary = self.decoder.rotary_emb
        sections = rotary.mrope_section
        return [number % 3 if number < 3 * sections[number % 3] else 0 for number in range(len(rotary.inv_freq))]
