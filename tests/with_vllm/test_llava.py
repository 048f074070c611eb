"""LLaVA-1.5: the embedded model in vLLM says what it says in transformers."""

from __future__ import annotations

import pytest
from support.checkpoints import saved_with
from support.vllm_engines import Ask, EngineError
from support.vllm_reference import compressed, expected, largest_difference

from covist import tiny

pytestmark = pytest.mark.vllm

ARCHITECTURE = "CovistLlavaForConditionalGeneration"
COLUMNS = 32
"""Heads of 32 become 64 wide, the next that the CPU's attention has."""
COVIST = {"budget": 64, "concentration": 0.05}
EXACT = 1e-4
"""Between two ways to compute the same in single precision."""


@pytest.fixture(scope="module")
def served(engine, embedded):
    return engine.serve(embedded[2], ARCHITECTURE, COVIST)


@pytest.fixture(scope="module")
def references(embedded, asks):
    """What transformers says with the cosine series that the engine has."""
    model, processor, _ = embedded
    return compressed(model, processor, asks, columns=COLUMNS, **COVIST)


def test_the_same_tokens_and_log_probabilities_as_in_transformers(served, embedded, asks, references):
    model, processor, _ = embedded
    completions = served.generate(asks)
    assert largest_difference(completions, references) < EXACT
    assert largest_difference(completions, compressed(model, processor, asks, **COVIST)) < 0.2  # the series' error


def test_text_and_images_share_a_batch(served, embedded, asks, references):
    model, processor, _ = embedded
    text = [Ask("USER: is there a square ? ASSISTANT:"), Ask("USER: what color is the sky ? ASSISTANT:")]
    completions = served.generate([*asks[:3], *text])
    assert largest_difference(completions, references[:3] + expected(model, processor, text)) < EXACT


def test_requests_have_budgets_of_their_own(served, embedded, asks):
    model, processor, _ = embedded
    budgets = (None, "100%", 48, 1000, 0.05, 576)
    own = [Ask(asks[0].prompt, asks[0].images, {} if one is None else {"covist_budget": one}) for one in budgets]
    completions = served.generate(own)
    words = len(completions[0].prompt) - 64
    assert [len(one.prompt) - words for one in completions] == [64, 576, 48, 576, 29, 576]
    references = [
        compressed(model, processor, [ask], columns=COLUMNS, **{**COVIST, "budget": one or 64})[0]
        for ask, one in zip(own, budgets, strict=True)
    ]
    assert largest_difference(completions, references) < EXACT
    plain = expected(model, processor, [own[1]] * 3)
    assert largest_difference([completions[place] for place in (1, 3, 5)], plain) < EXACT


def test_a_second_question_finds_the_first_part_of_an_image_in_the_cache(served, embedded):
    model, processor, _ = embedded
    scene = tiny.sample_scene(tiny.HELD_OUT_SEEDS[40])
    first, second = [
        Ask(tiny.prompt_for(one.question), (tiny.scene_image(scene),)) for one in tiny.questions_for(scene)[:2]
    ]
    assert served.generate([first])[0].cached == 0
    completions = served.generate([second])
    assert completions[0].cached == 64  # the image ends two tokens later
    references = compressed(model, processor, [second], columns=COLUMNS, **COVIST)
    assert largest_difference(completions, references) < EXACT
    again = served.generate([second])
    assert again[0].log_probs.equal(completions[0].log_probs)


def test_two_images_in_two_turns(served, embedded, asks):
    model, processor, _ = embedded
    both = Ask(asks[0].prompt + " yes</s>" + asks[4].prompt, asks[0].images + asks[4].images)
    completions = served.generate([both], tokens=6, endless=True)
    references = compressed(model, processor, [both], 6, COLUMNS, endless=True, **COVIST)
    assert largest_difference(completions, references) < EXACT


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"covist_budget": "auto"}, "vLLM fixes the prompt's length before the image is seen"),
        ({"covist_budget": -1}, "budget must be a positive number of tokens .* got -1"),
        ({"covist_budgets": 48}, "unknown option covist_budgets"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_the_engine_goes_on(served, asks, options, reason):
    with pytest.raises(EngineError, match=reason):
        served.generate([Ask(asks[0].prompt, asks[0].images, options)])
    assert served.generate(asks[:1])[0].ids


def test_a_prompt_whose_images_leave_too_many_positions_empty_is_refused(served, asks):
    many = Ask("USER: " + "<image>\n" * 13 + "is there a square ? ASSISTANT:", asks[0].images * 13)
    with pytest.raises(EngineError, match="leave 6656 positions empty, more than 6144"):
        served.generate([many])


# -- little memory: images are split over steps, and requests lose their memory --------------------------------------


@pytest.fixture(scope="module")
def tight(engine, embedded):
    """An engine that computes 48 tokens at a time and holds the keys of three prompts or so."""
    narrow = {"max_num_batched_tokens": 48, "max_num_seqs": 16, "max_model_len": 416, "num_gpu_blocks_override": 14}
    return engine.serve(embedded[2], ARCHITECTURE, COVIST, **narrow)


def test_images_that_are_split_over_steps(tight, asks, references):
    assert largest_difference(tight.generate(asks), references) < EXACT
    assert largest_difference(tight.generate(asks), references) < EXACT  # with prefix hits


def test_requests_that_lose_their_memory_are_computed_again(tight, embedded, asks):
    model, processor, _ = embedded
    before = tight.preemptions()
    completions = tight.generate(asks[:9], tokens=60, endless=True)
    assert tight.preemptions() > before
    references = compressed(model, processor, asks[:9], 60, COLUMNS, endless=True, **COVIST)
    assert largest_difference(completions, references) < 1e-3  # sixty steps


# -- the question takes part -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """The embedded CLIP, and a folder as anybody would save it."""
    _, _, (model, tokenizer) = tiny.load()
    folder = tmp_path_factory.mktemp("clip")
    return (model, tokenizer), saved_with(model, tokenizer, folder)


def test_a_question_that_takes_part_in_the_selection(engine, embedded, asks, clip):
    model, processor, folder = embedded
    served = engine.serve(folder, ARCHITECTURE, {**COVIST, "instruction": True, "clip": clip[1]})
    completions = served.generate(asks)
    references = compressed(model, processor, asks, columns=COLUMNS, **COVIST, clip=clip[0], instruction=None)
    assert largest_difference(completions, references) < EXACT
    assert served.generate(asks[:1])[0].cached == 64
    assert served.generate([Ask(tiny.prompt_for("is there a cat ?"), asks[0].images)])[0].cached == 0


def test_without_a_text_tower_the_first_decoder_layer_compares(engine, embedded, asks):
    model, processor, folder = embedded
    served = engine.serve(folder, ARCHITECTURE, {**COVIST, "instruction": True})
    two_turns = Ask(asks[0].prompt + " yes</s>" + asks[4].prompt, asks[0].images + asks[4].images)
    both = [*asks[:6], two_turns]
    references = compressed(model, processor, both, columns=COLUMNS, **COVIST, instruction=None)
    assert largest_difference(served.generate(both), references) < EXACT


# -- other ways to run -----------------------------------------------------------------------------------------------


def test_compiled(engine, embedded, asks, references):
    served = engine.serve(embedded[2], ARCHITECTURE, COVIST, enforce_eager=False)
    assert largest_difference(served.generate(asks), references) < EXACT


def test_in_half_precision(engine, embedded, asks, references):
    served = engine.serve(embedded[2], ARCHITECTURE, COVIST, dtype="bfloat16")
    assert largest_difference(served.generate(asks), references) < 1
