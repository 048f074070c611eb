"""Images of which no token is left in later layers (VTW)."""

import pytest
import torch
from support.literal import Chosen, Literal
from support.llava import IMAGE, LAYERS, TOKEN_ID, TOKENS, ask
from support.requests import greedy, sample_of

from covist.methods.create import create_method

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO_IMAGES = "USER: where <image> and <image> what color is the left object ? ASSISTANT:"
BUDGET = 45  # 360 of 8 layers: two see all 144 tokens, one sees 72


@pytest.mark.parametrize("prompt", [PROMPT, TWO_IMAGES, "what color is this <image>"])
@pytest.mark.parametrize("budget", [BUDGET, 54, 1], ids=["part of a layer", "whole layers", "less than a layer"])
def test_later_layers_see_the_text_alone(multi_head, compress, prompt, budget):
    method, inputs = create_method("vtw"), ask(prompt)
    handle = compress(multi_head, method=method, budget=budget)
    with Chosen.by(method) as chosen:
        found = multi_head(**inputs).logits[0, -1]
    assert {state.count for state in chosen.states[max(chosen.states)]} == {0}
    family = handle.settings.family
    handle.remove()
    literal = Literal(multi_head, family.decoder, rule=None)
    expected = literal.logits(inputs, inputs["input_ids"][0] == TOKEN_ID[IMAGE], chosen)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_cache_of_these_layers_holds_text_alone_and_continues_like_a_fresh_prefill(multi_head, compress):
    inputs = ask(PROMPT)
    handle = compress(multi_head, method=create_method("vtw"), budget=BUDGET)
    output = greedy(multi_head, inputs, 3)
    (image,) = handle.report.images
    assert image.tokens_per_layer == image.cached_tokens_per_layer == (TOKENS, TOKENS, TOKENS // 2, *[0] * (LAYERS - 3))
    assert "layers 3-7: 0 tokens" in repr(image) and repr(image.stages[-1]).endswith("0 tokens)")
    lengths = [layer.keys.shape[2] for layer in output.past_key_values.layers]
    assert lengths == [count + handle.report.text_tokens[0] + 2 for count in image.tokens_per_layer]
    longer = {**inputs, "input_ids": output.sequences[:, :-1]}
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    fresh = multi_head(**longer).logits[0, -1]
    torch.testing.assert_close(output.logits[-1][0], fresh, atol=1e-4, rtol=1e-4)


def test_a_batch_of_withdrawn_images_gives_what_each_prompt_gives_alone(multi_head, compress):
    inputs = ask(TWO_IMAGES, PROMPT)
    compress(multi_head, method=create_method("vtw"), budget=BUDGET)
    together = greedy(multi_head, inputs, 3)
    for index, images in enumerate((slice(0, 2), slice(2, 3))):
        alone = greedy(multi_head, sample_of(inputs, index, images), 3)
        for step, logits in enumerate(together.logits):
            torch.testing.assert_close(logits[index], alone.logits[step][0], atol=1e-4, rtol=1e-4)


def test_a_cache_is_cropped_up_to_the_place_of_a_withdrawn_image(multi_head, compress):
    inputs = ask(PROMPT)
    compress(multi_head, method=create_method("vtw"), budget=BUDGET)
    expected = greedy(multi_head, inputs, 6)
    cache = greedy(multi_head, inputs, 4).past_key_values
    cache.crop(-2)
    prefix = {"input_ids": expected.sequences[:, : cache.get_seq_length() + 1]}
    output = greedy(multi_head, prefix, 4, past_key_values=cache)
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(expected.logits[2:]), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot be cropped into a compressed image"):
        cache.crop(-20)


def test_composition_leaves_nothing_where_nothing_is_left(multi_head, compress):
    handle = compress(multi_head, method=create_method("vtw+csc+sca"), budget=BUDGET)
    assert torch.stack(greedy(multi_head, ask(PROMPT), 2).logits).isfinite().all()
    assert handle.report.images[0].tokens_per_layer[-1] == 0


@pytest.mark.parametrize("layers", [1, 2, 3, 28, 32])
def test_the_layer_mean_is_the_budget(layers):
    for tokens in (2, 35, 576):
        for budget in (1, 2, tokens // 2, tokens - 1, tokens, tokens + 1):
            schedule = create_method("vtw").schedule(layers, max(1, budget), tokens)
            counts = schedule.tokens_per_layer
            assert len(counts) == layers and list(counts) == sorted(counts, reverse=True) and counts[0] >= 1
            assert schedule.mean == min(max(1, budget), tokens)
            assert len(set(counts) - {tokens, 0}) <= 1


def test_the_published_withdrawal_is_the_one_of_its_layer_mean():
    assert create_method("vtw").schedule(32, 270, 576).stages == ((0, 576), (15, 0))
