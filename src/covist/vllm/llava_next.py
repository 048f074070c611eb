"""LLaVA-NeXT in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape
from vllm.model_executor.models.interfaces import SupportsMRoPE
from vllm.model_executor.models.llava import LlavaDummyInputsBuilder
from vllm.model_executor.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from covist.vllm.clip_model import ClipTowerModel
from covist.vllm.processing import CompressedProcessor, Extent
from covist.vllm.towers import ServedLlavaNext


class LlavaNextProcessor(CompressedProcessor, LlavaNextMultiModalProcessor):
    """A base view and a grid of tiles, a newline after every row of the grid."""

    served_family = ServedLlavaNext

    def extents(self, processed: Mapping[str, Any]) -> list[Extent]:
        return [self._extent(*map(int, size)) for size in processed["image_sizes"]]

    def _extent(self, height: int, width: int) -> Extent:
        length = self.info.get_num_image_tokens(image_width=width, image_height=height)
        encoder, pinpoints = self.info.get_vision_encoder_info(), self.info.get_hf_config().image_grid_pinpoints
        rows, columns = get_anyres_image_grid_shape((height, width), pinpoints, encoder.get_image_size())
        _, newlines = self.info._get_num_unpadded_features(
            original_height=height,
            original_width=width,
            npatches=encoder.get_patch_grid_length(),
            num_patch_height=rows,
            num_patch_width=columns,
        )
        return Extent(length - newlines, markers=newlines)


@MULTIMODAL_REGISTRY.register_processor(
    LlavaNextProcessor, info=LlavaNextProcessingInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class CovistLlavaNext(ClipTowerModel, LlavaNextForConditionalGeneration, SupportsMRoPE):
    """LLaVA-NeXT with compressed images."""

    served_family = ServedLlavaNext
    hf_to_vllm_mapper = ClipTowerModel.named_as_saved | LlavaNextForConditionalGeneration.hf_to_vllm_mapper
