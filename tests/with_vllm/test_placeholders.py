"""How many places an image takes, counted with the dummy inputs of vLLM's classes: whole, and compressed.

Only processors are built. They need the tokenizer and the image processor of a checkpoint, so this covers the classes
that have small ones among the tests (`support`); for the others, published files would be needed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.case import Case
from support.vllm_families import folder_of
from support.vllm_models import MODELS

from covist.vllm.settings import AXES, BY_EMBEDDINGS, ITEM

pytestmark = pytest.mark.vllm

FEW = 3
COUNTED = {
    "GLM4V": "glm4v",
    "Idefics3": "idefics3",
    "InternVL": "internvl over qwen2",
    "LLaVA": "llava-1.5 multi-head",
    "LLaVA with Pixtral's tower": "pixtral",
    "LLaVA-NeXT": "llava-next multi-head",
    "LLaVA-OneVision": "llava-onevision",
    "Mistral3": "mistral3",
    "Qwen2-VL": "qwen2-vl grouped-query",
    "Qwen2.5-VL": "qwen2.5-vl grouped-query",
    "Qwen3-VL": "qwen3-vl grouped-query",
    "Qwen3-VL of experts": "qwen3-vl of experts",
    "Qwen3.5": "qwen3.5",
    "SmolVLM": "smolvlm",
    "Transformers backend": "vipllava",
}


def processors(case: Case, folder: str) -> tuple[Any, Any]:
    """vLLM's own processor of a checkpoint, and ours."""
    from vllm.config import ModelConfig
    from vllm.multimodal.processing import InputProcessingContext
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.transformers_utils.config import mrope_num_dims

    from covist.vllm import classes

    settings = {"method": BY_EMBEDDINGS, "budget": FEW}
    config = ModelConfig(model=folder, dtype="float32", hf_overrides={"covist": settings})
    setattr(config.hf_config, AXES, mrope_num_dims(config.hf_config) or 1)
    made = getattr(classes, f"Covist{case.model_class}")
    context = InputProcessingContext(config, cached_tokenizer_from_config(config))
    return tuple(one._processor_factory.build_processor(context) for one in (made.__mro__[2], made))


def processed(processor: Any, inputs: Any) -> tuple[Any, Any]:
    """The place of the only image, and its data."""
    from vllm.multimodal.processing import TimingContext

    found = processor.apply(inputs, TimingContext(enabled=False))
    ((place,), (data,)) = found["mm_placeholders"]["image"], found["mm_kwargs"]["image"]
    assert place.offset + place.length <= len(found["prompt_token_ids"])
    return place, data


@pytest.mark.parametrize("name", COUNTED)
def test_the_dummy_image_of_a_class_takes_as_many_places_as_its_budget_says(name, tmp_path):
    from covist.vllm.item import Item

    case = MODELS[COUNTED[name]]
    plain, ours = processors(case, folder_of(case, tmp_path))
    dummy = ours.get_dummy_inputs(1024, {"image": 1}, {})
    own, _ = processed(plain, replace(dummy, hf_processor_mm_kwargs={}))
    whole, _ = processed(ours, dummy)
    assert whole.length == own.length
    few, data = processed(ours, replace(dummy, hf_processor_mm_kwargs={}))
    item = Item.unpack(data[ITEM].data)
    content = own.get_num_embeds() - item.newlines
    assert int(item.embeds.sum()) == own.get_num_embeds() and content > FEW
    assert own.length - few.length == content - FEW
    assert few.get_num_embeds() == item.rows == item.length - content + FEW
