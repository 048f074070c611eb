"""A batch of requests: prompts end together, and what is shown stands one after the other."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.request.batches import collate, pad_token
from covist.request.inputs import Request

PADDING = 7


def request(*ids: int, **images: torch.Tensor) -> Request:
    row = torch.tensor([ids])
    return Request({"input_ids": row, "attention_mask": torch.ones_like(row)}, images)


@given(st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=6), min_size=1, max_size=4))
def test_prompts_are_padded_on_the_left(prompts):
    inputs = collate([request(*ids) for ids in prompts], PADDING)
    for ids, row, mask in zip(prompts, inputs["input_ids"].tolist(), inputs["attention_mask"].tolist(), strict=True):
        missing = len(row) - len(ids)
        assert row == [PADDING] * missing + ids
        assert mask == [0] * missing + [1] * len(ids)
    assert inputs["input_ids"].shape[1] == max(map(len, prompts))


def test_values_that_only_prompts_with_images_have_are_zero_for_the_others():
    shown = Request({"input_ids": torch.tensor([[1, 2]]), "mm_token_type_ids": torch.tensor([[0, 1]])}, {})
    plain = Request({"input_ids": torch.tensor([[3, 4, 5]])}, {})
    assert collate([shown, plain], PADDING)["mm_token_type_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]


def test_images_with_fewer_tiles_are_filled_up_with_zeros():
    few, many = torch.ones(1, 2, 3, 4, 4), torch.ones(1, 5, 3, 4, 4)
    pixels = collate([request(1, pixel_values=few), request(2), request(3, pixel_values=many)], PADDING)["pixel_values"]
    assert pixels.shape == (2, 5, 3, 4, 4)
    assert pixels[0, :2].eq(1).all() and pixels[0, 2:].eq(0).all() and pixels[1].eq(1).all()


def test_images_and_videos_may_be_shown_by_different_prompts():
    image, film = torch.ones(4, 6), torch.zeros(8, 6)
    inputs = collate([request(1, pixel_values=image), request(2, pixel_values_videos=film)], PADDING)
    assert torch.equal(inputs["pixel_values"], image) and torch.equal(inputs["pixel_values_videos"], film)


@pytest.mark.parametrize(("pad", "end", "used"), [(3, 2, 3), (None, 2, 2), (None, None, 0), (0, 2, 0)])
def test_a_tokenizer_without_padding_is_padded_with_its_end(pad, end, used):
    class Tokenizer:
        pad_token_id, eos_token_id = pad, end

    assert pad_token(Tokenizer()) == used
