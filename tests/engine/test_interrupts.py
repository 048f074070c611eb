"""A notebook's stop button: an interrupted call leaves nothing that a later call could meet.

torch runs the hooks that clean up after `Exception` only, so KeyboardInterrupt takes another way out of a model.
"""

from contextlib import contextmanager

import pytest
import torch
from support.leftovers import fingerprint
from support.llava import ask, build_llava
from support.requests import assert_same, greedy
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import covist

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TEXT = "USER: where is this ? ASSISTANT:"
PLACES = {
    "vision tower": lambda model: model.model.vision_tower.encoder.layers[0],
    "key projection of the tower": lambda model: model.model.vision_tower.encoder.layers[2].self_attn.k_proj,
    "projector": lambda model: model.model.multi_modal_projector,
    "embeddings": lambda model: model.get_input_embeddings(),
    "first layer": lambda model: model.model.language_model.layers[0],
    "before a reduction": lambda model: model.model.language_model.layers[2].self_attn,
    "after a reduction": lambda model: model.model.language_model.layers[5],
    "last layer": lambda model: model.model.language_model.layers[7].mlp,
    "final norm": lambda model: model.model.language_model.norm,
    "head": lambda model: model.lm_head,
}
IN_THE_DECODER = [name for name in PLACES if name not in ("vision tower", "key projection of the tower", "projector")]


@contextmanager
def interrupted(module):
    """The stop button is pressed once, when `module` has run."""

    def stop(*_):
        hook.remove()
        raise KeyboardInterrupt

    hook = module.register_forward_hook(stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        hook.remove()


@pytest.fixture
def stopped(multi_head, compress, strategy):
    """A compressed model, and a check that later calls are what they are without an interrupt."""
    inputs, text = ask(PROMPT), ask(TEXT)
    plain = {"image": greedy(multi_head, inputs, 2), "text": greedy(multi_head, text, 2)}
    before = fingerprint(multi_head)
    handle = compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 3)

    def check():
        assert_same(greedy(multi_head, text, 2), plain["text"], 0)
        assert_same(greedy(multi_head, inputs, 3), expected, 0)
        assert_same(greedy(multi_head, text, 2), plain["text"], 0)
        handle.remove()
        assert fingerprint(multi_head) == before
        assert_same(greedy(multi_head, inputs, 2), plain["image"], 0)

    return handle, check


@pytest.mark.parametrize("place", PLACES)
def test_interrupted_prefill_leaves_later_calls_alone(multi_head, stopped, place):
    _, check = stopped
    with interrupted(PLACES[place](multi_head)):
        multi_head(**ask(PROMPT, seeds=(8,)))
    check()


@pytest.mark.parametrize("place", ["projector", "after a reduction", "head"])
def test_interrupted_generation_leaves_later_calls_alone(multi_head, stopped, place):
    _, check = stopped
    with interrupted(PLACES[place](multi_head)):
        greedy(multi_head, ask(PROMPT, seeds=(8,)), 3)
    check()


@pytest.mark.parametrize("place", IN_THE_DECODER)
def test_interrupted_step_leaves_later_calls_alone(multi_head, stopped, place):
    _, check = stopped
    first = greedy(multi_head, ask(PROMPT, seeds=(8,)), 1)
    with interrupted(PLACES[place](multi_head)):
        multi_head(first.sequences[:, -1:], past_key_values=first.past_key_values)
    check()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("place", ["first layer", "after a reduction", "final norm"])
def test_text_as_long_as_the_cached_keys_after_an_interrupted_step(multi_head, compress, strategy, place, more):
    """With the key of the step, such a prompt fits the masks of the interrupted step, so nothing would raise."""
    compress(multi_head, budget=24, strategy=strategy)
    first = greedy(multi_head, ask(PROMPT, seeds=(8,)), 1)
    lengths = sorted({layer.keys.shape[-2] for layer in first.past_key_values.layers})
    texts = [torch.randint(5, 20, (1, length + more)) for length in lengths]
    expected = [multi_head(text).logits for text in texts]
    for text, logits in zip(texts, expected, strict=True):
        cache = greedy(multi_head, ask(PROMPT, seeds=(8,)), 1).past_key_values
        with interrupted(PLACES[place](multi_head)):
            multi_head(first.sequences[:, -1:], past_key_values=cache)
        assert torch.equal(multi_head(text).logits, logits)


def test_text_as_long_as_the_compressed_prompt_after_an_interrupted_prefill(multi_head, compress, strategy):
    compress(multi_head, budget=24, strategy=strategy)
    cache = greedy(multi_head, ask(PROMPT, seeds=(8,)), 1).past_key_values
    for length in sorted({layer.keys.shape[-2] for layer in cache.layers}):
        text = torch.randint(5, 20, (1, length))
        expected = multi_head(text).logits
        with interrupted(multi_head.model.language_model.layers[5]):
            multi_head(**ask(PROMPT, seeds=(8,)))
        assert torch.equal(multi_head(text).logits, expected)


def test_text_model_called_directly_after_an_interrupt(multi_head, compress, strategy):
    compress(multi_head, budget=24, strategy=strategy)
    decoder, ids = multi_head.model.language_model, torch.tensor([[1, 5, 6, 7]])
    expected = decoder(input_ids=ids).last_hidden_state
    for place in ("projector", "first layer", "after a reduction"):
        with interrupted(PLACES[place](multi_head)):
            multi_head(**ask(PROMPT, seeds=(8,)))
        assert torch.equal(decoder(input_ids=ids).last_hidden_state, expected)


def test_interrupted_call_under_other_settings(multi_head, stopped):
    handle, check = stopped
    for choice in ({"budget": 12}, {"method": "fastv", "budget": 50}, {"budget": "none"}):
        with handle.using(**choice), interrupted(multi_head.model.language_model.layers[5]):
            multi_head(**ask(PROMPT, seeds=(8,)))
    check()


def test_interrupted_encoding_is_not_taken_for_the_next_one(multi_head, stopped):
    """The image of the next prompt has to be its own, not one that was encoded before the stop button."""
    handle, check = stopped
    greedy(multi_head, ask(PROMPT, seeds=(5,)), 1)
    expected = handle.report.images[0].kept
    with interrupted(multi_head.model.multi_modal_projector):
        multi_head.get_image_features(ask(PROMPT, seeds=(8,))["pixel_values"])
    multi_head.get_image_features(ask(PROMPT, seeds=(9,))["pixel_values"])
    greedy(multi_head, ask(PROMPT, seeds=(5,)), 1)
    assert torch.equal(handle.report.images[0].kept, expected)
    check()


# -- while the decoder is read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj"])
def test_interrupted_compress_leaves_the_model_alone(multi_head, compress, strategy, name):
    before, functions = fingerprint(multi_head), dict(ALL_ATTENTION_FUNCTIONS)
    plain = greedy(multi_head, ask(PROMPT), 2)
    with interrupted(getattr(multi_head.model.language_model.layers[0].self_attn, name)):
        compress(multi_head, budget=24, strategy=strategy)
    assert fingerprint(multi_head) == before and covist.Compression.of(multi_head) is None
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions
    assert_same(greedy(multi_head, ask(PROMPT), 2), plain, 0)


@pytest.mark.parametrize("asked", ["by the caller", "by a prefill"])
def test_weights_are_read_after_an_interrupted_refresh(compress, strategy, asked):
    """The next prefill must not believe that the interrupted reading was finished."""
    model, inputs = build_llava(kv_heads=2), ask(PROMPT)
    handle = compress(model, budget=24, strategy=strategy)
    greedy(model, inputs, 1)
    first = model.model.language_model.layers[0].self_attn
    for layer in model.model.language_model.layers[::2]:
        layer.self_attn.q_proj.weight[::3] *= 4
    with interrupted(first.q_proj):
        if asked == "by the caller":
            handle.refresh()
        else:
            model(**inputs)
    answer = greedy(model, inputs, 3)
    handle.remove()
    compress(model, budget=24, strategy=strategy)
    assert_same(answer, greedy(model, inputs, 3), 1e-6)
