"""The key/value cache: how many keys each layer keeps, and that it can be copied, cropped and handed on."""

import copy
import pickle

import pytest
import torch
from support.llava import HEADS, LAYERS, TOKENS, WIDTH, ask
from support.requests import assert_same, greedy, kept_keys
from transformers import DynamicCache

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
COUNTS = {"fixed": (24,) * 8, "pro": (36,) * 4 + (18,) * 2 + (6,) * 2}


@pytest.mark.parametrize("steps", [1, 4])
def test_lengths_follow_the_schedule(model, strategy, compress, steps):
    inputs = ask(PROMPT)
    text = inputs["input_ids"].shape[1] - TOKENS
    handle = compress(model, budget=24, strategy=strategy)
    cache = greedy(model, inputs, steps).past_key_values
    assert handle.report.images[0].tokens_per_layer == COUNTS[strategy]
    # the last generated token has not been fed back
    assert kept_keys(cache) == [count + text + steps - 1 for count in COUNTS[strategy]]
    assert cache.get_seq_length() == TOKENS + text + steps - 1


def test_bytes_are_those_of_the_cache(model, strategy, compress):
    inputs = ask(PROMPT)

    def size(cache):
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    plain = size(greedy(model, inputs, 1).past_key_values)
    handle = compress(model, budget=24, strategy=strategy)
    compressed = size(greedy(model, inputs, 1).past_key_values)
    assert handle.report.kv_bytes == compressed
    assert handle.report.kv_bytes_uncompressed == plain
    assert compressed < plain / 3
    kv_heads = model.config.text_config.num_key_value_heads
    assert plain == 2 * LAYERS * inputs["input_ids"].shape[1] * kv_heads * (WIDTH // HEADS) * 4


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copied_cache_continues_like_the_original(multi_head, strategy, compress, duplicate):
    compress(multi_head, budget=24, strategy=strategy)
    first = greedy(multi_head, ask(PROMPT), 2)
    follow_up = {"input_ids": torch.cat([first.sequences, ask("where is this ?")["input_ids"]], 1)}
    twin = duplicate(first.past_key_values)
    original = greedy(multi_head, follow_up, 3, past_key_values=first.past_key_values)
    assert_same(greedy(multi_head, follow_up, 3, past_key_values=twin), original, 0)


def test_cropped_cache_continues_as_if_the_tokens_had_not_been(multi_head, strategy, compress):
    inputs = ask(PROMPT)
    compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 6)
    cache = greedy(multi_head, inputs, 4).past_key_values
    cache.crop(0)
    cache.crop(-2)
    assert cache.get_seq_length() == inputs["input_ids"].shape[1] + 1
    prefix = {"input_ids": expected.sequences[:, : cache.get_seq_length() + 1]}
    output = greedy(multi_head, prefix, 4, past_key_values=cache)
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(expected.logits[2:]), atol=1e-5, rtol=1e-5)


def test_crop_into_an_image_is_refused(multi_head, compress):
    compress(multi_head, budget=24)
    cache = greedy(multi_head, ask(PROMPT), 1).past_key_values
    with pytest.raises(ValueError, match="cannot be cropped into a compressed image"):
        cache.crop(-20)


def test_reset_cache_can_be_used_again(multi_head, strategy, compress):
    inputs = ask(PROMPT)
    compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 2)
    cache = greedy(multi_head, inputs, 3).past_key_values
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_same(greedy(multi_head, inputs, 2, past_key_values=cache), expected)


def test_foreign_changes_to_the_cache_are_noticed(multi_head, compress):
    compress(multi_head, budget=24)
    output = greedy(multi_head, ask(PROMPT), 2)
    for layer in output.past_key_values.layers:
        layer.keys, layer.values = layer.keys[:, :, 1:], layer.values[:, :, 1:]
    with pytest.raises(ValueError, match="cache was modified"):
        multi_head(output.sequences[:, -1:], past_key_values=output.past_key_values)


def test_compressed_cache_without_compression_is_refused(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    output = greedy(multi_head, ask(PROMPT), 2)
    handle.remove()
    with pytest.raises(ValueError, match="filled under compression"):
        greedy(multi_head, {"input_ids": output.sequences}, 2, past_key_values=output.past_key_values)


def test_cache_of_a_refused_call_still_serves_text(multi_head, compress):
    """An image call that fails must not leave a cache that counts wrongly."""
    text = ask("USER: what color is this ? ASSISTANT:")
    expected = greedy(multi_head, text, 3)
    compress(multi_head, budget=24)
    cache = DynamicCache(config=multi_head.config.text_config)
    broken = ask(PROMPT)
    with pytest.raises(ValueError, match="2-D attention_mask"):
        multi_head(**{**broken, "attention_mask": torch.zeros(1, 1, 1, 1)}, past_key_values=cache)
    assert_same(greedy(multi_head, text, 3, past_key_values=cache), expected, 0)


def test_cache_of_another_attention_rule_is_refused(multi_head, strategy, compress):
    """Weights and gains belong to the keys: another method would read them by its own rule."""
    first = compress(multi_head, budget=24, strategy=strategy)
    output = greedy(multi_head, ask(PROMPT), 2)
    first.remove()
    for other in (
        {"method": "divprune", "concentration": None},
        {"strategy": "pro" if strategy == "fixed" else "fixed"},
    ):
        second = compress(multi_head, budget=24, **other)
        with pytest.raises(ValueError, match="filled by a method with another attention rule"):
            greedy(
                multi_head, {"input_ids": output.sequences}, 2, past_key_values=copy.deepcopy(output.past_key_values)
            )
        second.remove()


def test_cache_of_another_attention_rule_is_refused_by_a_later_image(multi_head, strategy, compress):
    first = compress(multi_head, budget=24, strategy=strategy)
    output = greedy(multi_head, ask(PROMPT), 2)
    first.remove()
    later = ask("USER: <image> and this ? ASSISTANT:", seeds=(4,))
    ids = torch.cat([output.sequences, later["input_ids"][:, 1:]], 1)
    compress(multi_head, budget=24, method="divprune", concentration=None)
    with pytest.raises(ValueError, match="filled by a method with another attention rule"):
        greedy(
            multi_head,
            {"input_ids": ids, "pixel_values": later["pixel_values"]},
            2,
            past_key_values=output.past_key_values,
        )


def test_cache_continues_under_a_handle_with_the_same_settings(multi_head, strategy, compress):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 5)
    cache = greedy(multi_head, inputs, 3).past_key_values
    handle.remove()
    compress(multi_head, budget=48, strategy=strategy)  # the budget has no part in the attention
    seen = {"input_ids": expected.sequences[:, : inputs["input_ids"].shape[1] + 3]}
    output = greedy(multi_head, seen, 2, past_key_values=cache)
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(expected.logits[3:]), atol=1e-5, rtol=1e-5)


def test_uncompressed_cache_continues_under_any_method(multi_head, compress):
    inputs = ask(PROMPT)
    handle = compress(multi_head, budget=TOKENS)
    expected = greedy(multi_head, inputs, 4)
    cache = greedy(multi_head, inputs, 2).past_key_values
    handle.remove()
    compress(multi_head, budget=24, method="divprune", concentration=None)
    seen = {"input_ids": expected.sequences[:, : inputs["input_ids"].shape[1] + 2]}
    output = greedy(multi_head, seen, 2, past_key_values=cache)
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(expected.logits[2:]), atol=1e-5, rtol=1e-5)
