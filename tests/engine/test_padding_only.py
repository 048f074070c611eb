"""Rows that are padding from end to end, as fixed batch shapes have them: the other rows are what they are alone."""

import pytest
import torch
from support.llava import PAD, TOKEN_ID, ask
from support.requests import greedy, step_logits

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def with_padding(inputs, row):
    """The same batch with a further row of padding at `row`."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    blank = torch.full_like(ids[:1], TOKEN_ID[PAD])
    return {
        "input_ids": torch.cat([ids[:row], blank, ids[row:]]),
        "attention_mask": torch.cat([mask[:row], torch.zeros_like(mask[:1]), mask[row:]]),
        "pixel_values": inputs["pixel_values"],
    }


@pytest.mark.parametrize("row", [0, 1, 2])
def test_row_of_padding_leaves_the_others_alone(model, strategy, compress, row):
    compress(model, budget=24, strategy=strategy)
    inputs = ask(PROMPT, "USER: is there a word ? ASSISTANT:")
    others = [index for index in range(3) if index != row]
    expected = step_logits(greedy(model, inputs, 3))
    found = step_logits(greedy(model, with_padding(inputs, row), 3))
    torch.testing.assert_close(found[:, others], expected, atol=1e-4, rtol=1e-4)
    assert torch.isfinite(found).all()


def test_forward_call_without_a_cache(model, strategy, compress):
    compress(model, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    expected = model(**inputs, use_cache=False).logits
    found = model(**with_padding(inputs, 1), use_cache=False).logits
    torch.testing.assert_close(found[:1], expected, atol=1e-4, rtol=1e-4)
    assert found.shape[1] == inputs["input_ids"].shape[1] and torch.isfinite(found).all()


def test_padding_rows_do_not_appear_in_the_report(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    multi_head(**with_padding(ask(PROMPT), 0))
    assert [image.sample for image in handle.report.images] == [1]
    assert handle.report.text_tokens[0] == 0


def test_row_whose_image_is_masked_with_everything_else(multi_head, strategy, compress):
    """Image tokens in the row of padding, too: a batch that was padded by repeating a prompt."""
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(PROMPT, PROMPT)
    expected = multi_head(**ask(PROMPT)).logits
    inputs["attention_mask"] = inputs["attention_mask"].clone()
    inputs["attention_mask"][1] = 0
    found = multi_head(**inputs).logits
    torch.testing.assert_close(found[:1], expected, atol=1e-4, rtol=1e-4)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("method", ["fastv", "divprune", "tome", "clse"])
def test_other_methods(multi_head, compress, method):
    handle = compress(multi_head, method=method, budget=48, concentration=None)
    inputs = ask(PROMPT)
    expected = step_logits(greedy(multi_head, inputs, 2))
    found = step_logits(greedy(multi_head, with_padding(inputs, 0), 2))
    torch.testing.assert_close(found[:, 1:], expected, atol=1e-4, rtol=1e-4)
    assert len(handle.report.images) == 1
