"""A handle leaves no trace: not after removal, not after an error, not in memory, not in another thread."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from support.leftovers import fingerprint
from support.llava import ask, build_llava, processor
from support.requests import assert_same, greedy, step_logits

import covist
from covist.contract.signals import ImageSignals
from covist.engine.prefill import Prefill
from covist.engine.running import current
from covist.engine.sequence.batch import Batch
from covist.methods.covist import CovistFixed, CovistPro

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


def test_removal_restores_everything(model, strategy, compress):
    inputs = ask(PROMPT)
    multi_head_calls = [lambda: greedy(model, inputs, 3), lambda: model(**inputs, use_cache=False)]
    plain = [call().logits for call in multi_head_calls]
    before = fingerprint(model)
    handle = compress(model, budget=24, strategy=strategy)
    assert fingerprint(model) != before
    for call in multi_head_calls:
        call()
    handle.remove()
    handle.remove()
    assert fingerprint(model) == before
    assert torch.equal(torch.stack(greedy(model, inputs, 3).logits), torch.stack(plain[0]))
    assert torch.equal(model(**inputs, use_cache=False).logits, plain[1])


def test_with_block_removes_also_after_an_error(multi_head):
    before = fingerprint(multi_head)
    with pytest.raises(KeyError), pytest.warns(UserWarning, match="no clip="):  # noqa: SIM117
        with covist.compress(multi_head, processor(), budget=24):
            raise KeyError
    assert fingerprint(multi_head) == before


def test_only_the_text_model_runs_through_covists_attention_until_removal(multi_head, strategy, compress):
    text, vision = multi_head.config.text_config, multi_head.config.vision_config
    seen = []
    handle = compress(multi_head, budget=24, strategy=strategy)
    layer = multi_head.model.vision_tower.encoder.layers[0].self_attn
    hook = layer.register_forward_hook(lambda *_: seen.append(vision._attn_implementation))
    greedy(multi_head, ask(PROMPT), 1)
    hook.remove()
    assert seen == ["sdpa"] and text._attn_implementation == "covist:sdpa"
    handle.remove()
    assert text._attn_implementation == "sdpa"


def test_wrapped_method_that_was_wrapped_before(multi_head, compress):
    """An instance attribute of the user in front of the class's method comes back."""
    base = multi_head.model
    original = base.get_image_features
    base.get_image_features = mine = lambda *args, **kwargs: original(*args, **kwargs)
    try:
        compress(multi_head, budget=24).remove()
        assert base.__dict__["get_image_features"] is mine
    finally:
        del base.get_image_features


def test_second_compression_says_how_to_replace_the_first(multi_head, compress):
    first = compress(multi_head, budget=24)
    before = fingerprint(multi_head)
    with pytest.raises(ValueError, match=r"already compressed.*\.remove\(\)"):
        compress(multi_head, budget=32)
    assert fingerprint(multi_head) == before
    assert covist.Compression.of(multi_head) is first
    first.remove()
    second = compress(multi_head, budget=32)
    first.remove()  # an old handle has no power over the new one
    assert covist.Compression.of(multi_head) is second
    greedy(multi_head, ask(PROMPT), 1)
    assert second.report.images[0].budget == 32


def test_copies_of_a_compressed_model_are_refused(multi_head, compress, tmp_path):
    handle = compress(multi_head, budget=24)
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(ValueError, match=r"while it is compressed; call \.remove\(\)"):
            attempt(multi_head)
    multi_head.save_pretrained(tmp_path)  # weights and configuration know nothing of the handle
    handle.remove()
    inputs = ask(PROMPT)
    loaded = type(multi_head).from_pretrained(tmp_path)
    assert_same(greedy(copy.deepcopy(multi_head), inputs, 2), greedy(loaded, inputs, 2))


def test_failed_compression_leaves_no_hooks(multi_head, compress):
    class Deep(CovistFixed):
        encoder_requests = (99,)

    before = fingerprint(multi_head)
    with pytest.raises(IndexError):
        compress(multi_head, budget=24, method=Deep())
    assert fingerprint(multi_head) == before and covist.Compression.of(multi_head) is None


def test_two_models_do_not_share_gains(multi_head, grouped_query, compress):
    """One method object may serve two models: what it knows of a decoder stays with the decoder."""
    method = CovistFixed()
    method.tracker.freeze(0.05)
    inputs = ask(PROMPT)
    alone = compress(grouped_query, budget=24)
    expected = greedy(grouped_query, inputs, 2)
    alone.remove()
    compress(multi_head, budget=24, method=method)
    compress(grouped_query, budget=24, method=method)
    greedy(multi_head, inputs, 2)
    assert_same(greedy(grouped_query, inputs, 2), expected)


# -- errors ------------------------------------------------------------------------------------------------------------


class Failure(Exception):
    pass


def fail(*_):
    raise Failure


def failing(model, place):
    decoder = model.model.language_model
    module = {
        "vision tower": model.model.vision_tower.encoder.layers[0],
        "projector": model.model.multi_modal_projector,
        "first layer": decoder.layers[0],
        "after a reduction": decoder.layers[5],
        "last layer": decoder.layers[7].mlp,
        "decoder": decoder.norm,
    }[place]
    return module.register_forward_hook(fail)


@pytest.mark.parametrize(
    "place", ["vision tower", "projector", "first layer", "after a reduction", "last layer", "decoder"]
)
def test_error_in_the_middle_leaves_the_model_usable(multi_head, strategy, compress, place):
    inputs, text = ask(PROMPT), ask("USER: where is this ? ASSISTANT:")
    plain, plain_text = greedy(multi_head, inputs, 2), greedy(multi_head, text, 2)
    before = fingerprint(multi_head)
    handle = compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, inputs, 2)
    hook = failing(multi_head, place)
    with pytest.raises(Failure):
        greedy(multi_head, ask(PROMPT, seeds=(8,)), 2)
    hook.remove()
    assert current() is None
    assert_same(greedy(multi_head, text, 2), plain_text, 0)
    assert_same(greedy(multi_head, inputs, 2), expected, 0)
    handle.remove()
    assert fingerprint(multi_head) == before
    assert_same(greedy(multi_head, inputs, 2), plain, 0)


def test_error_in_the_method_leaves_the_model_usable(multi_head, compress):
    class Moody(CovistPro):
        angry = True

        def reduce(self, state, view, count):
            if self.angry:
                raise Failure
            return super().reduce(state, view, count)

    method = Moody()
    method.tracker.freeze(0.05)
    handle = compress(multi_head, budget=24, strategy="pro")
    expected = greedy(multi_head, ask(PROMPT), 2)
    handle.remove()
    compress(multi_head, budget=24, method=method)
    with pytest.raises(covist.CovistError, match="failed in reduce") as raised:
        greedy(multi_head, ask(PROMPT), 2)
    assert isinstance(raised.value.__cause__, Failure)
    method.angry = False
    assert_same(greedy(multi_head, ask(PROMPT), 2), expected, 0)


def test_error_while_decoding_leaves_later_requests_alone(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    expected = greedy(multi_head, ask(PROMPT), 3)
    first = greedy(multi_head, ask(PROMPT), 1)
    hook = failing(multi_head, "after a reduction")
    with pytest.raises(Failure):
        multi_head(first.sequences[:, -1:], past_key_values=first.past_key_values)
    hook.remove()
    assert_same(greedy(multi_head, ask(PROMPT), 3), expected, 0)


def test_interrupted_prefill_does_not_reach_a_decoder_called_directly(multi_head, strategy, compress):
    """The text model alone, after a prompt that failed between the encoder and the decoder."""
    compress(multi_head, budget=24, strategy=strategy)
    decoder = multi_head.model.language_model
    ids = torch.tensor([[1, 5, 6, 7]])
    expected = decoder(input_ids=ids).last_hidden_state
    inputs = ask(PROMPT)
    with pytest.raises(ValueError, match="do not match"):
        multi_head(inputs["input_ids"][:, :20], pixel_values=inputs["pixel_values"])
    assert torch.equal(decoder(input_ids=ids).last_hidden_state, expected)


# -- memory ------------------------------------------------------------------------------------------------------------


def alive(*kinds):
    gc.collect()
    return [value for value in gc.get_objects() if issubclass(type(value), kinds)]


def test_nothing_of_a_call_stays_in_memory(multi_head, strategy, compress):
    handle = compress(multi_head, budget=24, strategy=strategy)
    greedy(multi_head, ask(PROMPT), 2)
    assert alive(Prefill, Batch, ImageSignals) == []
    multi_head.get_image_features(ask(PROMPT)["pixel_values"])  # encoded for a prompt that never comes
    assert len(alive(ImageSignals)) == 1
    handle.remove()
    assert alive(ImageSignals) == []


def test_model_that_is_dropped_while_compressed_is_freed():
    model = build_llava(layers=4)
    with pytest.warns(UserWarning, match="no clip="):
        covist.compress(model, processor(), budget=24, strategy="pro")
    greedy(model, ask(PROMPT), 1)
    trace = weakref.ref(model)
    del model
    gc.collect()
    assert trace() is None


# -- threads -----------------------------------------------------------------------------------------------------------


def in_threads(*tasks):
    """Run tasks at once, several times each; returns the results of each task."""
    results, barrier = [[] for _ in tasks], threading.Barrier(len(tasks))

    def work(number):
        barrier.wait()
        for _ in range(4):
            results[number].append(step_logits(tasks[number]()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_models_in_two_threads(multi_head, grouped_query, compress):
    compress(multi_head, budget=24, strategy="pro")
    compress(grouped_query, budget=40)
    tasks = [
        lambda: greedy(multi_head, ask(PROMPT), 3),
        lambda: greedy(grouped_query, ask("what <image> is <image>", seeds=(2, 3)), 3),
    ]
    expected = [step_logits(task()) for task in tasks]
    for results, alone in zip(in_threads(*tasks), expected, strict=True):
        assert len(results) == 4 and all(torch.allclose(result, alone, atol=1e-5) for result in results)


def test_one_model_in_two_threads(multi_head, strategy, compress):
    compress(multi_head, budget=24, strategy=strategy)
    tasks = [
        lambda: greedy(multi_head, ask(PROMPT), 3),
        lambda: greedy(multi_head, ask("what <image> is <image>", seeds=(2, 3)), 3),
    ]
    expected = [step_logits(task()) for task in tasks]
    for results, alone in zip(in_threads(*tasks), expected, strict=True):
        assert len(results) == 4 and all(torch.allclose(result, alone, atol=1e-5) for result in results)
