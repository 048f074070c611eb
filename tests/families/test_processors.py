"""The real processors on real images of odd sizes, without torchvision."""

import json

import pytest
from support.families import VOCABULARY, smooth_image, tokenizer
from support.matrix.llava_next import llava_next, llava_next_inputs
from support.matrix.qwen2_5_vl import qwen_inputs, qwen_processor
from transformers import LlavaNextVideoProcessor, Qwen2_5_VLProcessor, SmolVLMProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm import image_processing_pil_smolvlm as smolvlm_images
from transformers.models.smolvlm import processing_smolvlm

from covist.families.processors import image_only

SIZES = [(131, 70), (61, 240), (64, 64), (399, 57)]


@pytest.mark.parametrize("size", SIZES)
def test_qwen_prompts_get_one_placeholder_per_merged_token(size):
    inputs = qwen_inputs(["{image}what is this ?"], [smooth_image(*size)])
    tokens = int(inputs.image_grid_thw.prod()) // 4
    assert int((inputs.input_ids == VOCABULARY["<|image_pad|>"]).sum()) == tokens
    assert int(inputs.mm_token_type_ids.sum()) == tokens


def test_the_image_only_processor_saves_and_loads_like_any_other(tmp_path):
    processor = qwen_processor()
    processor.chat_template = "USER"
    processor.save_pretrained(tmp_path)
    loaded = image_only(Qwen2_5_VLProcessor).from_pretrained(tmp_path)
    assert isinstance(loaded.image_processor, Qwen2VLImageProcessorPil) and loaded.chat_template == "USER"
    text, image = "<|vision_start|><|image_pad|><|vision_end|>what", smooth_image(131, 70)
    ours, theirs = (one(images=[image], text=[text], return_tensors="pt") for one in (processor, loaded))
    assert ours.keys() == theirs.keys()
    assert all(values.equal(theirs[name]) for name, values in ours.items())


def test_a_saved_image_only_processor_names_the_original(tmp_path):
    qwen_processor().save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "processor_config.json").read_text(encoding="utf-8"))
    assert stored["processor_class"] == "Qwen2_5_VLProcessor" and "video_processor" not in stored


def test_the_image_only_processor_refuses_videos_clearly():
    with pytest.raises(ValueError, match="images only; use Qwen2_5_VLProcessor"):
        qwen_processor()(text=["<|video_pad|>"], videos=[[smooth_image(56, 56)]])


def test_a_part_keeps_its_place_where_the_video_half_comes_first(tmp_path):
    """LLaVA-NeXT-Video hands its parts on in another order, and has settings of its own."""
    images, settings = LlavaNextImageProcessorPil(), {"patch_size": 14, "vision_feature_select_strategy": "full"}
    processor = image_only(LlavaNextVideoProcessor)(image_processor=images, tokenizer=tokenizer(), **settings)
    processor.save_pretrained(tmp_path)
    loaded = image_only(LlavaNextVideoProcessor).from_pretrained(tmp_path)
    assert type(loaded.image_processor) is LlavaNextImageProcessorPil
    assert (loaded.patch_size, loaded.vision_feature_select_strategy) == (14, "full")


def test_packages_that_only_videos_need_are_not_required():
    """SmolVLM wants a package for the words of a video's length, and its chat template a video's defaults."""
    images = smolvlm_images.SmolVLMImageProcessorPil()
    processor = image_only(SmolVLMProcessor)(images, tokenizer(), chat_template="USER: {{ messages[0]['content'] }}")
    assert processor.apply_chat_template([{"role": "user", "content": "what"}], tokenize=False) == "USER: what"
    assert processing_smolvlm.num2words is None or callable(processing_smolvlm.num2words)  # as it was


def test_text_without_images_needs_no_image_processor_call():
    inputs = qwen_inputs(["what is this ?"], [])
    assert set(inputs) == {"input_ids", "attention_mask", "mm_token_type_ids"}


@pytest.mark.parametrize("size", SIZES)
def test_llava_next_prompts_get_one_placeholder_per_packed_token(size):
    inputs = llava_next_inputs(["{image}what is this ?"], [smooth_image(*size)])
    span = llava_next().model.get_image_features(inputs.pixel_values, inputs.image_sizes).pooler_output[0]
    assert int((inputs.input_ids == VOCABULARY["<image>"]).sum()) == len(span)
