"""What every family promises: the engine is the same, so the same is checked for all of them."""

import warnings

import pytest
import torch
from support.cases import first_of
from support.requests import assert_same, greedy, kept_keys, step_logits

import covist
from covist.families.registry import family_for

ONE = "{image}what is the colour of this ?"
TWO = "this {image}and {image}what is that ?"
COUNTS = {"fixed": (12,) * 8, "pro": (18,) * 4 + (9,) * 2 + (3,) * 2}


@pytest.mark.parametrize(("strategy", "budget"), [("fixed", 10_000), ("pro", 1.0)], indirect=["strategy"])
def test_budget_of_all_tokens_is_the_plain_model(case, strategy, compress, budget):
    inputs = case.ask(TWO)
    plain = greedy(case.model, inputs)
    handle = compress(case, budget=budget, strategy=strategy)
    assert_same(greedy(case.model, inputs), plain)
    assert handle.report.kv_bytes == handle.report.kv_bytes_uncompressed


def test_small_budget_changes_the_logits(case, strategy, compress):
    inputs = case.ask(ONE)
    plain = step_logits(greedy(case.model, inputs, 1))
    compress(case, budget=8, strategy=strategy)
    assert (step_logits(greedy(case.model, inputs, 1)) - plain).abs().max() > 1e-2


def test_every_step_equals_the_slow_reference(case, strategy, compress):
    """Two images with text around them; single ones are compared below, wherever they stand."""
    inputs = case.ask(TWO)
    handle = compress(case, budget=12, strategy=strategy)
    output = greedy(case.model, inputs, 4)
    handle.remove()
    slow = case.slow(case.model, pro=strategy == "pro")
    length = inputs["input_ids"].shape[1]
    for step, logits in enumerate(output.logits):
        ids = output.sequences[0, : length + step].tolist()
        expected = slow.logits(ids, inputs, list(handle.report.images))
        torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_cache_lengths_follow_the_schedule(case, strategy, compress):
    inputs, fed_back = case.ask(ONE), 3  # the last of four generated tokens is not
    handle = compress(case, budget=12, strategy=strategy)
    cache = greedy(case.model, inputs, 1 + fed_back).past_key_values
    image = handle.report.images[0]
    text = inputs["input_ids"].shape[1] - image.tokens - image.markers
    assert image.tokens_per_layer == COUNTS[strategy]
    assert image.tokens + case.markers(case.model, inputs) == case.tokens(inputs)
    assert kept_keys(cache) == [count + image.markers + text + fed_back for count in COUNTS[strategy]]
    prompts = [(layer.keys[..., :-fed_back, :], layer.values[..., :-fed_back, :]) for layer in cache.layers]
    assert handle.report.kv_bytes == sum(keys.nbytes + values.nbytes for keys, values in prompts)


def test_first_stage_that_keeps_every_token_can_be_reduced_later(case, compress):
    """At a budget close to all tokens Pro's first stage is the whole image; its later stages still compose."""
    inputs = case.ask(ONE)
    handle = compress(case, budget=0.9, strategy="pro")
    output = greedy(case.model, inputs, 2)
    handle.remove()
    (image,) = handle.report.images
    assert image.tokens_per_layer[0] == image.tokens > image.tokens_per_layer[-1]
    expected = case.slow(case.model, pro=True).logits(inputs["input_ids"][0].tolist(), inputs, [image])
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


BATCH = (ONE, "what is this ?", TWO)
PICTURES = ((0,), (), (1, 2))


def test_padded_batch_with_a_text_only_sample_equals_the_prompts_alone(family, strategy, compress):
    compress(family, budget=12, strategy=strategy)
    together = step_logits(greedy(family.model, family.ask(*BATCH), 4))
    for index, (question, images) in enumerate(zip(BATCH, PICTURES, strict=True)):
        alone = step_logits(greedy(family.model, family.ask(question, images=images), 4))
        torch.testing.assert_close(together[:, index], alone[:, 0], atol=1e-4, rtol=1e-4)


def test_images_that_shrink_at_different_depths_do_not_disturb_each_other(compress):
    """PyramidDrop cuts earlier where an image is large for the budget; the other one goes on as it is."""
    case = first_of("qwen2.5-vl")
    handle = compress(case, budget=12, method="pyramiddrop", instruction="what", concentration=None)
    questions = ("{image}what is this ?", "{image}what ?")
    together = step_logits(greedy(case.model, case.ask(*questions), 2))
    depths = [[stage.depth for stage in image.stages] for image in handle.report.images]
    assert depths == [[0, 1, 3, 6], [0, 2, 4, 6]]
    for index, question in enumerate(questions):
        alone = step_logits(greedy(case.model, case.ask(question, images=(index,)), 2))
        torch.testing.assert_close(together[:, index], alone[:, 0], atol=1e-4, rtol=1e-4)


def test_several_images_have_their_own_state_and_budget(family, strategy, compress):
    handle = compress(family, budget=12, strategy=strategy, instruction="")
    greedy(family.model, family.ask("{image}{image}what ?", images=(0, 1)), 1)
    both = handle.report.images
    assert [image.tokens_per_layer for image in both] == [COUNTS[strategy]] * 2
    for index, image in enumerate(both):
        greedy(family.model, family.ask("{image}what ?", images=(index,)), 1)
        assert image.grid == handle.report.images[0].grid
        # before the decoder an image knows nothing of its neighbours
        assert torch.equal(image.stages[0].indices, handle.report.images[0].stages[0].indices)


@pytest.mark.parametrize(
    ("question", "strategy"),
    [("{image}", "fixed"), ("what is this ?{image}", "pro"), ("what {image}is this ?", "fixed"), ("{image}", "pro")],
    indirect=["strategy"],
)
def test_image_at_the_start_in_the_middle_and_at_the_end(family, strategy, compress, question):
    inputs = family.ask(question)
    handle = compress(family, budget=12, strategy=strategy)
    output = greedy(family.model, inputs, 2)
    handle.remove()
    slow = family.slow(family.model, pro=strategy == "pro")
    expected = slow.logits(inputs["input_ids"][0].tolist(), inputs, list(handle.report.images))
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


def test_beams_of_a_batch_equal_the_beams_alone(family, strategy, compress):
    compress(family, budget=12, strategy=strategy)
    questions = (ONE, "{image}what ?")
    together = greedy(family.model, family.ask(*questions), 4, num_beams=3, output_scores=True)
    for index, question in enumerate(questions):
        inputs = family.ask(question, images=(index,))
        alone = greedy(family.model, inputs, 4, num_beams=3, output_scores=True)
        assert torch.equal(together.sequences[index, -4:], alone.sequences[0, -4:])
        torch.testing.assert_close(together.sequences_scores[index], alone.sequences_scores[0], atol=1e-4, rtol=1e-4)


def test_beam_scores_are_those_of_the_same_tokens_fed_one_by_one(family, strategy, compress):
    inputs = family.ask(ONE)
    compress(family, budget=12, strategy=strategy)
    beams = greedy(family.model, inputs, 3, num_beams=3, output_scores=True, length_penalty=0.0)
    prompt = inputs["input_ids"].shape[1]
    chosen = beams.sequences[0, prompt:]
    forced = greedy(
        family.model, inputs, 3, prefix_allowed_tokens_fn=lambda batch, ids: [int(chosen[len(ids) - prompt])]
    )
    scores = step_logits(forced)[:, 0].log_softmax(-1).gather(1, chosen[:, None]).sum()
    torch.testing.assert_close(beams.sequences_scores[0], scores, atol=1e-4, rtol=1e-4)


def test_sampled_sequences_share_one_state(family, strategy, compress):
    handle = compress(family, budget=12, strategy=strategy)
    torch.manual_seed(0)
    greedy(family.model, family.ask(ONE), 2, do_sample=True, num_return_sequences=3)
    first, *others = (image.stages[0].indices for image in handle.report.images)
    assert len(others) == 2 and all(torch.equal(first, other) for other in others)


def test_further_turns_of_text_continue_from_the_cache(family, strategy, compress):
    """The follow-up question after a kept cache equals the whole conversation, if the states are the same."""
    handle = compress(family, budget=12, strategy=strategy, instruction="what")
    first = greedy(family.model, family.ask(ONE), 2)
    more = torch.cat([first.sequences, family.ask("and that ?")["input_ids"]], 1)
    inputs = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    continued = greedy(family.model, inputs, 3, past_key_values=first.past_key_values)
    handle.remove()
    slow = family.slow(family.model, pro=strategy == "pro")
    expected = slow.logits(more[0].tolist(), family.ask(ONE), list(handle.report.images))
    torch.testing.assert_close(continued.logits[0][0], expected, atol=1e-4, rtol=1e-4)


def second_turn(family):
    """Logits of a conversation whose second turn brings another image to the kept cache."""
    first_inputs, second_inputs = family.ask(ONE), family.ask(ONE, images=(1,))
    first = greedy(family.model, first_inputs, 2)
    ids = torch.cat([first.sequences, second_inputs["input_ids"]], 1)
    inputs = {**second_inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs.pop("mm_token_type_ids", None)
    return greedy(family.model, inputs, 3, past_key_values=first.past_key_values)


def test_an_image_in_a_later_turn(family, strategy, compress):
    plain = second_turn(family)
    whole = compress(family, budget=1.0, strategy=strategy)
    assert_same(second_turn(family), plain)
    whole.remove()
    handle = compress(family, budget=12, strategy=strategy)
    output = second_turn(family)
    assert handle.report.images[0].tokens_per_layer == COUNTS[strategy]
    # text and newlines of both turns are in every layer, next to what the schedule leaves of both images
    others = [kept - 2 * count for kept, count in zip(kept_keys(output.past_key_values), COUNTS[strategy], strict=True)]
    assert len(set(others)) == 1
    is_text = output.sequences[0, :-1] != family.model.config.image_token_id  # the last token is not fed back
    assert others[0] - int(is_text.sum()) == family.markers(family.model, family.ask("{image}{image}"))


def test_removal_restores_the_model_bit_for_bit(family, strategy, compress):
    def snapshot():
        modules = {name: sorted(vars(module)) for name, module in family.model.named_modules()}
        hooks = {name: len(m._forward_hooks) + len(m._forward_pre_hooks) for name, m in family.model.named_modules()}
        return modules, hooks, family.model.config.to_dict()

    inputs = family.ask(TWO)
    plain, before = step_logits(greedy(family.model, inputs)), snapshot()
    handle = compress(family, budget=12, strategy=strategy)
    greedy(family.model, inputs)
    handle.remove()
    assert snapshot() == before
    assert torch.equal(step_logits(greedy(family.model, inputs)), plain)


def test_static_cache_gives_what_a_dynamic_one_gives(family, compress):
    inputs = family.ask(TWO)
    compress(family, budget=12)
    assert_same(greedy(family.model, inputs, cache_implementation="static"), greedy(family.model, inputs))


def test_eager_attention_agrees_with_sdpa(family, strategy, compress, monkeypatch):
    inputs = family.ask(TWO)
    compress(family, budget=12, strategy=strategy)
    expected = greedy(family.model, inputs)
    monkeypatch.setattr(family_for(family.model).decoder.config, "_attn_implementation", "eager")
    assert_same(greedy(family.model, inputs), expected, 1e-4)


def test_autocast_does_not_reach_the_states(family, strategy, compress):
    """Encoder and decoder run in bfloat16, affinities and weights do not (states check that as they are built)."""
    inputs = family.ask(TWO)
    handle = compress(family, budget=12, strategy=strategy)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = greedy(family.model, inputs, 2)
    assert all(torch.isfinite(logits).all() for logits in output.logits)
    assert [image.tokens_per_layer for image in handle.report.images] == [COUNTS[strategy]] * 2


@pytest.mark.parametrize(
    ("strategy", "dtype"), [("fixed", torch.bfloat16), ("pro", torch.float16)], indirect=["strategy"]
)
def test_half_precision_keeps_its_dtype_and_float32_states(family, strategy, dtype):
    model = family.build().to(dtype)
    inputs = family.ask(ONE)
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with covist.compress(model, family.processor(), budget=12, strategy=strategy) as handle:
            output = greedy(model, inputs, 2)
    assert all(layer.keys.dtype == dtype for layer in output.past_key_values.layers)
    assert all(stage.weights.dtype == torch.float32 for stage in handle.report.images[0].stages)
    assert all(torch.isfinite(logits).all() for logits in output.logits)
