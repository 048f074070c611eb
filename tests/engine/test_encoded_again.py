"""Images that are encoded once and asked about several times: every prompt is what it would be with fresh pixels."""

import threading

import pytest
import torch
from support.llava import ask
from support.requests import assert_same, greedy
from transformers.modeling_outputs import BaseModelOutputWithPooling

import covist
from covist.methods.covist import CovistFixed

FIRST = "USER: <image> what color is this ? ASSISTANT:"
SECOND = "USER: where is the left object ? ASSISTANT:"
INSIDE = {"fastv": {"method": "fastv", "budget": 60}, "sparsevlm": {"method": "sparsevlm"}}


def encode(model, inputs):
    """What a caller gets who encodes in a call of its own."""
    return model.get_image_features(inputs["pixel_values"], return_dict=True)


def encode_one_by_one(model, inputs):
    """The features of all images, of which each was encoded in a call of its own."""
    parts = [model.get_image_features(pixels[None], return_dict=True) for pixels in inputs["pixel_values"]]
    return BaseModelOutputWithPooling(pooler_output=[features for part in parts for features in part.pooler_output])


def given(inputs, encoded, **more):
    """The same prompt with encoded images instead of pixels."""
    rest = {name: value for name, value in inputs.items() if name != "pixel_values"}
    return {**rest, "mm_encoder_outputs": {"image": encoded}, **more}


def kept(handle):
    return [[stage.kept.tolist() for stage in image.stages] for image in handle.report.images]


def conversation(model, inputs, first):
    """The first question, its answer and another question, as one prompt."""
    ids = torch.cat([first.sequences, ask(SECOND)["input_ids"][:, 1:]], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": inputs["pixel_values"]}


@pytest.mark.parametrize("options", INSIDE.values(), ids=INSIDE.keys())
def test_longer_conversation_is_a_prompt_of_its_own(multi_head, compress, options):
    """It begins with the first prompt, but the model did not generate it."""
    handle, inputs = compress(multi_head, concentration=None, **{"budget": 24, **options}), ask(FIRST)
    first = greedy(multi_head, inputs, 3)
    longer = conversation(multi_head, inputs, first)
    expected = multi_head(**longer).logits
    fresh = kept(handle)
    encoded = encode(multi_head, inputs)
    multi_head(**given(inputs, encoded))
    assert kept(handle) != fresh
    found = multi_head(**given(longer, encoded)).logits
    assert kept(handle) == fresh
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_generated_text_without_a_cache_is_still_no_prompt(multi_head, compress, strategy):
    """What `generate` itself writes must not be read as a question, whichever way the image came."""
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(FIRST)
    expected = greedy(multi_head, inputs, 4)
    assert_same(greedy(multi_head, inputs, 4, use_cache=False), expected, 1e-4)
    encoded = encode(multi_head, inputs)
    for _ in range(2):
        assert_same(greedy(multi_head, given(inputs, encoded), 4, use_cache=False), expected, 1e-4)


# -- settings between two prompts -------------------------------------------------------------------------------------


def test_concentration_of_every_call_is_its_own(multi_head, compress, strategy):
    handle, inputs = compress(multi_head, budget=24, strategy=strategy), ask(FIRST)
    fresh = {}
    for value in (0.9, 0.001):
        with handle.using(concentration=value, strategy=strategy) as run:
            multi_head(**inputs)
        fresh[value] = kept(run)
    assert fresh[0.9] != fresh[0.001]
    encoded = encode(multi_head, inputs)
    for value in (0.001, 0.9, 0.001, 0.9):
        with handle.using(concentration=value, strategy=strategy) as run:
            multi_head(**given(inputs, encoded))
        assert kept(run) == fresh[value], value


def test_running_reference_counts_an_encoding_once(multi_head, compress):
    """Two questions about one encoding are one image, for every method that has a reference of its own."""
    handle, inputs = compress(multi_head, budget=24, concentration=None), ask(FIRST)
    encoded = encode(multi_head, inputs)
    for _ in range(3):
        multi_head(**given(inputs, encoded))
    assert handle.settings.method.tracker.samples == 1
    other = CovistFixed()
    for _ in range(2):
        with handle.using(method=other):
            multi_head(**given(inputs, encoded))
    assert other.tracker.samples == 1


@pytest.mark.parametrize("first, second", [("covist-fixed", "covist-pro"), ("covist-pro", "covist-fixed")])
def test_methods_take_turns_on_one_encoding(multi_head, compress, first, second):
    handle, inputs = compress(multi_head, budget=24), ask(FIRST)
    fresh = {}
    for method in (first, second):
        with handle.using(method=method, concentration=0.02 if method == first else 0.8) as run:
            fresh[method] = multi_head(**inputs).logits
    encoded = encode(multi_head, inputs)
    for method in (first, second, first):
        with handle.using(method=method, concentration=0.02 if method == first else 0.8) as run:
            found = multi_head(**given(inputs, encoded)).logits
        torch.testing.assert_close(found, fresh[method], atol=1e-5, rtol=1e-5)
        assert run.report.method == method


# -- where the features come from -------------------------------------------------------------------------------------

THREE = "USER: <image> and <image> and <image> what color is this ? ASSISTANT:"


def test_images_that_were_encoded_one_by_one(multi_head, compress, strategy):
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(THREE)
    expected = greedy(multi_head, inputs, 2)
    encoded = encode_one_by_one(multi_head, inputs)
    assert_same(greedy(multi_head, given(inputs, encoded), 2), expected, 1e-4)


def test_batch_of_prompts_whose_images_were_encoded_one_by_one(multi_head, compress, strategy):
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(FIRST, FIRST, FIRST, FIRST)
    expected = greedy(multi_head, inputs, 2)
    encoded = encode_one_by_one(multi_head, inputs)
    assert_same(greedy(multi_head, given(inputs, encoded), 2), expected, 1e-4)


def test_images_that_another_thread_encoded(multi_head, compress, strategy):
    """A server may encode in a pool and answer elsewhere."""
    compress(multi_head, budget=24, strategy=strategy)
    inputs, encoded = ask(FIRST), []
    expected = greedy(multi_head, inputs, 2)

    def work():
        with torch.no_grad():
            encoded.append(encode(multi_head, inputs))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert_same(greedy(multi_head, given(inputs, encoded[0]), 2), expected, 1e-4)


def test_features_that_are_not_finite_are_called_so(multi_head, compress, strategy):
    """They did come from the tower; what is wrong with them is that they are NaN."""
    compress(multi_head, budget=24, strategy=strategy)
    inputs = ask(FIRST)
    inputs["pixel_values"] = inputs["pixel_values"].clone()
    inputs["pixel_values"][..., :8, :8] = float("nan")
    with pytest.raises(covist.CovistError, match=r"(?i)finite|nan") as complaint:
        multi_head(**inputs)
    assert "did not come from" not in str(complaint.value) and "\n" not in str(complaint.value)
    assert torch.isfinite(multi_head(**ask(FIRST)).logits).all()


def test_foreign_features_are_still_refused(multi_head, compress):
    compress(multi_head, budget=24)
    inputs = ask(FIRST)
    foreign = BaseModelOutputWithPooling(
        pooler_output=[torch.randn_like(one) for one in encode(multi_head, inputs).pooler_output]
    )
    with pytest.raises(covist.CovistError, match="did not come from this model's vision tower"):
        multi_head(**given(inputs, foreign))
