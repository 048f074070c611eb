"""Qwen2.5-VL in vLLM."""

from __future__ import annotations

from vllm.model_executor.models.qwen2_5_vl import (
    Qwen2_5_VLDummyInputsBuilder,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLMultiModalProcessor,
    Qwen2_5_VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from covist.vllm.qwen_model import QwenProcessor, QwenTowerModel
from covist.vllm.towers import ServedQwen25VL


class Qwen25VLProcessor(QwenProcessor, Qwen2_5_VLMultiModalProcessor):
    served_family = ServedQwen25VL


@MULTIMODAL_REGISTRY.register_processor(
    Qwen25VLProcessor, info=Qwen2_5_VLProcessingInfo, dummy_inputs=Qwen2_5_VLDummyInputsBuilder
)
class CovistQwen25VL(QwenTowerModel, Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL with compressed images."""

    served_family = ServedQwen25VL
