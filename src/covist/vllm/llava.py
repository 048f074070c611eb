"""LLaVA-1.5 in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.llava import (
    LlavaDummyInputsBuilder,
    LlavaForConditionalGeneration,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from covist.vllm.clip_model import ClipTowerModel
from covist.vllm.processing import CompressedProcessor, Extent
from covist.vllm.towers import ServedLlava


class LlavaProcessor(CompressedProcessor, LlavaMultiModalProcessor):
    """Every image is one square view."""

    served_family = ServedLlava

    def extents(self, processed: Mapping[str, Any]) -> list[Extent]:
        return [Extent(self.info.get_max_image_tokens())] * len(processed["pixel_values"])


@MULTIMODAL_REGISTRY.register_processor(LlavaProcessor, info=LlavaProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder)
class CovistLlava(ClipTowerModel, LlavaForConditionalGeneration, SupportsMRoPE):
    """LLaVA-1.5 with compressed images."""

    served_family = ServedLlava
    hf_to_vllm_mapper = ClipTowerModel.named_as_saved | LlavaForConditionalGeneration.hf_to_vllm_mapper
