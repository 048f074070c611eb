"""The paper's geometries with their real depth and token counts, narrow in width."""

import pytest
import torch
from support.families import smooth_image
from support.matrix.llava_next import llava_next, llava_next_processor
from support.matrix.qwen2_5_vl import qwen, qwen_inputs, qwen_processor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

import covist
from covist.methods.create import create_method

PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
NEXT = {640: (960, 576, 160), 320: (480, 288, 80), 160: (240, 144, 40)}
QWEN = {512: (768, 469, 128), 256: (384, 235, 64), 128: (192, 117, 32)}


@pytest.mark.parametrize(
    ("layers", "tokens", "budget", "counts"),
    [(32, 2880, *item) for item in NEXT.items()] + [(28, 1296, *item) for item in QWEN.items()],
)
def test_progressive_schedules_are_those_of_the_paper(layers, tokens, budget, counts):
    schedule = create_method("covist-pro").schedule(layers, budget, tokens)
    assert tuple(count for _, count in schedule.stages) == counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no clip=")
def test_llava_next_at_672_pixels():
    model = llava_next(layers=32)
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = model.config
    config.vision_config.update({**vision, "image_size": 336})
    config.image_grid_pinpoints = PINPOINTS
    model = type(model)(config).eval()
    processor = llava_next_processor()
    processor.image_processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}, image_grid_pinpoints=PINPOINTS
    )
    inputs = processor(images=[smooth_image(672, 672)], text=["USER: <image>what ? ASSISTANT:"], return_tensors="pt")
    with torch.no_grad(), covist.compress(model, processor, budget=640, strategy="pro") as handle:
        cache = model(**inputs, logits_to_keep=1).past_key_values
    (image,) = handle.report.images
    assert (image.tokens, image.markers, image.grid.views) == (2880, 48, ((24, 24), (48, 48)))
    assert image.tokens_per_layer == (960,) * 14 + (576,) * 10 + (160,) * 8
    text = inputs["input_ids"].shape[1] - 2928
    assert [layer.keys.shape[-2] for layer in cache.layers] == [n + 48 + text for n in image.tokens_per_layer]


@pytest.mark.slow
def test_qwen_at_1008_pixels():
    model = qwen(layers=28, vision={"depth": 1, "fullatt_block_indexes": [0], "window_size": 112})
    inputs = qwen_inputs(["{image}what is this ?"], [smooth_image(1008, 1008)])
    with torch.no_grad(), covist.compress(model, qwen_processor(), budget=512, strategy="pro") as handle:
        model(**inputs, logits_to_keep=1)
    (image,) = handle.report.images
    assert (image.tokens, image.grid.views) == (1296, ((36, 36),))
    assert image.tokens_per_layer == (768,) * 12 + (469,) * 9 + (128,) * 7
    assert image.mean_tokens == pytest.approx(511.9, abs=0.05)
