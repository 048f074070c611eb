"""The real processors on real images of odd sizes, without torchvision."""

import pytest
from support.families import VOCABULARY, llava_next, llava_next_inputs, qwen_inputs, qwen_processor, smooth_image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from covist.families.qwen_processor import ImageOnlyQwenProcessor

SIZES = [(131, 70), (61, 240), (64, 64), (399, 57)]


@pytest.mark.parametrize("size", SIZES)
def test_qwen_prompts_get_one_placeholder_per_merged_token(size):
    inputs = qwen_inputs(["{image}what is this ?"], [smooth_image(*size)])
    tokens = int(inputs.image_grid_thw.prod()) // 4
    assert int((inputs.input_ids == VOCABULARY["<|image_pad|>"]).sum()) == tokens
    assert int(inputs.mm_token_type_ids.sum()) == tokens


def test_the_image_only_processor_saves_and_loads_like_any_other(tmp_path):
    processor = qwen_processor()
    processor.save_pretrained(tmp_path)
    loaded = ImageOnlyQwenProcessor.from_pretrained(tmp_path)
    assert isinstance(loaded.image_processor, Qwen2VLImageProcessorPil)
    text, image = "<|vision_start|><|image_pad|><|vision_end|>what", smooth_image(131, 70)
    ours, theirs = (one(images=[image], text=[text], return_tensors="pt") for one in (processor, loaded))
    assert ours.keys() == theirs.keys()
    assert all(values.equal(theirs[name]) for name, values in ours.items())


def test_the_image_only_processor_refuses_videos_clearly():
    with pytest.raises(ValueError, match="images only"):
        qwen_processor()(text=["<|video_pad|>"], videos=[[smooth_image(56, 56)]])


def test_text_without_images_needs_no_image_processor_call():
    inputs = qwen_inputs(["what is this ?"], [])
    assert set(inputs) == {"input_ids", "attention_mask", "mm_token_type_ids"}


@pytest.mark.parametrize("size", SIZES)
def test_llava_next_prompts_get_one_placeholder_per_packed_token(size):
    inputs = llava_next_inputs(["{image}what is this ?"], [smooth_image(*size)])
    span = llava_next().model.get_image_features(inputs.pixel_values, inputs.image_sizes).pooler_output[0]
    assert int((inputs.input_ids == VOCABULARY["<image>"]).sum()) == len(span)
