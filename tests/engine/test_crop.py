"""A cache that cannot be cropped is refused before any of its layers is cut."""

import pytest
import torch
from support.llava import TOKENS, ask
from support.requests import greedy, kept_keys

from covist.errors import CovistError

PROMPT = "USER: where <image> what color is this ? ASSISTANT:"
STAGED = {
    "fastv": {"method": "fastv", "budget": 60, "concentration": None},
    "pro that keeps everything at first": {"strategy": "pro", "budget": 100},
    "pyramiddrop": {"method": "pyramiddrop", "budget": 60, "concentration": None},
    "fixed": {"budget": 24},
}
"""The first layers of most of these hold the whole image, so that only later ones refuse."""


def filled(model):
    output = greedy(model, ask(PROMPT), 2)
    return output.past_key_values, output.sequences


@pytest.mark.parametrize("options", STAGED.values(), ids=STAGED.keys())
def test_refused_crop_cuts_no_layer(multi_head, compress, options):
    compress(multi_head, **options)
    expected_cache, sequences = filled(multi_head)
    expected = multi_head(sequences[:, -1:], past_key_values=expected_cache).logits
    cache, _ = filled(multi_head)
    keys, length = kept_keys(cache), cache.get_seq_length()
    for removed in (-TOKENS, 12 - length):
        with pytest.raises(CovistError, match="cannot be cropped into a compressed image"):
            cache.crop(removed)
        assert kept_keys(cache) == keys and cache.get_seq_length() == length
        assert [layer.get_seq_length() for layer in cache.layers] == [length] * len(cache.layers)
    torch.testing.assert_close(multi_head(sequences[:, -1:], past_key_values=cache).logits, expected)


@pytest.mark.parametrize("options", STAGED.values(), ids=STAGED.keys())
def test_crop_of_text_still_cuts_every_layer(multi_head, compress, options):
    compress(multi_head, **options)
    cache, sequences = filled(multi_head)
    keys, length = kept_keys(cache), cache.get_seq_length()
    expected = multi_head(sequences[:, -1:], past_key_values=filled(multi_head)[0]).logits
    multi_head(sequences[:, -1:], past_key_values=cache)
    cache.crop(-1)
    assert kept_keys(cache) == keys and cache.get_seq_length() == length
    torch.testing.assert_close(multi_head(sequences[:, -1:], past_key_values=cache).logits, expected)
