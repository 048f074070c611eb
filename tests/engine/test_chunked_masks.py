"""Masks that would be too large are made for some queries at a time, with the same result."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import first_of
from support.conversations import padded_conversation, single_conversation
from support.requests import greedy, step_logits

from covist.engine.attention import mask, step


@pytest.fixture
def limit(monkeypatch):
    """Sets how many elements a mask may have."""

    def set_limit(elements):
        for file in (mask, step):
            monkeypatch.setattr(file, "ELEMENTS_AT_ONCE", elements)

    return set_limit


@pytest.fixture
def masks(monkeypatch):
    """The masks that reach torch's attention."""
    seen, attention = [], F.scaled_dot_product_attention

    def spy(query, key, value, attn_mask=None, **options):
        seen.append(attn_mask)
        return attention(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return seen


@pytest.mark.parametrize(
    ("method", "elements"), [("covist-fixed", 4000), ("covist-pro", 1), ("restore-divprune", 4000), ("fastv", 4000)]
)
def test_chunks_are_the_whole(model, method, compress, limit, elements):
    frozen = {} if method.startswith("covist") else {"concentration": None}
    compress(model, budget=24, method=method, **frozen)
    expected = padded_conversation(model), single_conversation(model)
    limit(elements)
    torch.testing.assert_close((padded_conversation(model), single_conversation(model)), expected, atol=1e-4, rtol=1e-4)


def test_several_axes_are_served_alike(compress, limit, strategy):
    case = first_of("qwen2.5-vl")
    inputs = case.ask("{image} what", "where {image} is {image}")
    compress(case.model, processor=case.processor(), budget=12, strategy=strategy)
    expected = step_logits(greedy(case.model, inputs))
    limit(4000)
    torch.testing.assert_close(step_logits(greedy(case.model, inputs)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_mask_is_larger_than_allowed(model, compress, limit, masks, dtype):
    compress(model, budget=24, method="uniform+sca", concentration=None)
    limit(4000)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        padded_conversation(model)
    sizes = [seen.numel() for seen in masks if seen is not None]
    assert max(sizes) <= 4000 and len(sizes) > 40


def test_the_attention_of_the_model_comes_back(model, compress, limit):
    config = model.config.text_config
    plain = single_conversation(model)
    limit(4000)
    handle = compress(model, budget=24)
    single_conversation(model)
    assert config._attn_implementation == "covist:sdpa"
    handle.remove()
    assert config._attn_implementation == "sdpa"
    assert torch.equal(single_conversation(model), plain)
