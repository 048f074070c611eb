"""Images whose tokens stand in several runs of a prompt, with text between them, as tiles and timed frames have it."""

import pytest
import torch
from support.llava import IMAGE, TOKEN_ID, TOKENS, ask
from support.requests import assert_same, greedy
from support.slow_llava import SlowLlava

PROMPT = "USER: where <image> and <image> what color is the left object ? ASSISTANT:"


def torn(inputs, *places, words=("object", "right")):
    """The same inputs with some words after the first `places` tokens of each image."""
    ids, seen = [], 0
    for token in inputs["input_ids"][0].tolist():
        ids.append(token)
        seen += token == TOKEN_ID[IMAGE]
        if token == TOKEN_ID[IMAGE] and seen % TOKENS in places:
            ids += [TOKEN_ID[word] for word in words]
    return {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        "pixel_values": inputs["pixel_values"],
    }


def test_a_budget_of_all_tokens_is_the_plain_model(model, strategy, compress):
    inputs = torn(ask(PROMPT), 10, 100)
    plain = greedy(model, inputs)
    compress(model, budget=TOKENS, strategy=strategy)
    assert_same(greedy(model, inputs), plain, 1e-4)


def test_logits_of_every_step(model, strategy, compress):
    inputs = torn(ask(PROMPT), 10, 100)
    handle = compress(model, budget=24, strategy=strategy)
    output = greedy(model, inputs, 4)
    handle.remove()
    slow, length = SlowLlava(model, pro=strategy == "pro"), inputs["input_ids"].shape[1]
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : length + step].tolist()
        expected = slow.logits(ids, inputs["pixel_values"], list(handle.report.images))
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_text_within_an_image_stays_and_is_not_read_as_instruction(multi_head, compress):
    """Neither what is selected nor how many tokens count depends on words between the runs of an image."""
    handle = compress(multi_head, budget=24)
    multi_head(**ask(PROMPT))
    whole = handle.report.images
    multi_head(**torn(ask(PROMPT), 10, 100))
    assert [image.markers for image in whole] == [0, 0]
    for before, after in zip(whole, handle.report.images, strict=True):
        assert (after.tokens, after.markers, after.budget) == (TOKENS, 4, 24)
        assert torch.equal(before.kept, after.kept)


@pytest.mark.parametrize("method", ["fastv", "sparsevlm", "divprune", "tome"])
def test_every_kind_of_method_takes_them(multi_head, compress, method):
    handle = compress(multi_head, budget=48, method=method, concentration=None)
    output = greedy(multi_head, torn(ask(PROMPT), 10, 100), 3)
    assert all(torch.isfinite(logits).all() for logits in output.logits)
    assert [image.markers for image in handle.report.images] == [4, 4]
