"""Qwen3-VL in vLLM: features for later layers are extra columns of a row, as in vLLM itself."""

from __future__ import annotations

from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from covist.vllm.qwen_model import QwenProcessor, QwenTowerModel
from covist.vllm.towers import ServedQwen3VL


class Qwen3VLProcessor(QwenProcessor, Qwen3VLMultiModalProcessor):
    served_family = ServedQwen3VL


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLProcessor, info=Qwen3VLProcessingInfo, dummy_inputs=Qwen3VLDummyInputsBuilder
)
class CovistQwen3VL(QwenTowerModel, Qwen3VLForConditionalGeneration):
    """Qwen3-VL with compressed images."""

    served_family = ServedQwen3VL
