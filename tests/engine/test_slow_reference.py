"""`generate` with its cache against the formulas run layer by layer on the compressed sequence."""

import pytest
import torch
from support.llava import ask, build_llava
from support.requests import greedy
from support.slow_llava import SlowLlava

PROMPTS = {
    "one image": "USER: <image> what color is this ? ASSISTANT:",
    "two images with text around them": "USER: where <image> and <image> what color is the left object ? ASSISTANT:",
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_logits_of_every_step(model, strategy, compress, prompt):
    inputs = ask(prompt)
    handle = compress(model, budget=24, strategy=strategy)
    output = greedy(model, inputs, 4)
    handle.remove()
    slow = SlowLlava(model, pro=strategy == "pro")
    length = inputs["input_ids"].shape[1]
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : length + step].tolist()
        expected = slow.logits(ids, inputs["pixel_values"], list(handle.report.images))
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_with_instruction_anchors_from_clip(multi_head, strategy, compress, clip):
    inputs = ask(PROMPTS["one image"])
    handle = compress(multi_head, budget=24, strategy=strategy, clip=clip)
    output = greedy(multi_head, inputs, 2)
    handle.remove()
    ids = inputs["input_ids"][0].tolist()
    expected = SlowLlava(multi_head, strategy == "pro").logits(ids, inputs["pixel_values"], handle.report.images)
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers, counts", [(1, (24,)), (2, (36, 12)), (3, (36, 30, 6))])
def test_pro_in_decoders_too_shallow_for_three_stages(compress, layers, counts):
    model, inputs = build_llava(layers=layers), ask(PROMPTS["one image"])
    handle = compress(model, budget=24, strategy="pro")
    output = greedy(model, inputs, 2)
    handle.remove()
    assert handle.report.images[0].tokens_per_layer == counts
    ids = inputs["input_ids"][0].tolist()
    expected = SlowLlava(model, pro=True).logits(ids, inputs["pixel_values"], handle.report.images)
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)
