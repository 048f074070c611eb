"""Every kind of decoder layer of transformers: full budgets are the plain model, small ones a literal reference."""

import copy

import pytest
import torch
from support.layer_kinds import KINDS, model_of
from support.leftovers import fingerprint
from support.literal import Chosen, Literal
from support.llava import TOKENS, ask
from support.requests import greedy, sample_of, step_logits
from transformers import DynamicCache

from covist.engine.decoder import FrozenDecoder
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.tiny.text import PAD, TOKEN_ID

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
TWO = "USER: where is this <image> and <image> what color is the left object ? ASSISTANT:"
SHORT = "<image> what"
INSIDE = 72  # a layer average for methods that reduce inside the decoder
BUDGET, STEPS, TOLERANCE = 24, 6, 1e-5


@pytest.fixture
def compress(compress):
    """Methods without a concentration reference have nothing to freeze."""

    def start(model, method, **options):
        if isinstance(method, str) and create_method(method).tracker is None:
            options["concentration"] = None
        return compress(model, method=method, **options)

    return start


# -- how far a compressed model is from what it should be --------------------------------------------------------------


def largest(one, other):
    return float((one - other).abs().max())


def steps_of(model, inputs, steps=STEPS, **options):
    output = greedy(model, inputs, steps, **options)
    return output.sequences[:, -steps:], step_logits(output)


def apart(model, inputs, other, **options):
    """The largest difference of logits over all steps; infinite if the tokens differ."""
    tokens, logits = steps_of(model, inputs, **options)
    return largest(logits, other[1]) if torch.equal(tokens, other[0]) else float("inf")


def from_the_plain_model(compress, model, method):
    inputs = ask(PROMPT)
    plain = steps_of(model, inputs)
    compress(model, budget=TOKENS, method=method)
    return apart(model, inputs, plain)


def from_the_literal_reference(compress, model, method, prompt=PROMPT, budget=BUDGET):
    inputs, chosen_method = ask(prompt), create_method(method)
    if chosen_method.tracker is not None:
        chosen_method.tracker.freeze(0.05)
    handle = compress(model, budget=budget, method=chosen_method)
    with Chosen.by(chosen_method) as chosen:
        tokens, logits = steps_of(model, inputs)
    assert min(state.count for states in chosen.states.values() for state in states) < TOKENS
    handle.remove()
    rule = chosen_method.attention_rule(FrozenDecoder(model.model.language_model))
    literal = Literal(model, rule, chosen_method.positions == "reindex")
    differences = []
    for step, found in enumerate(logits):
        ids = torch.cat([inputs["input_ids"], tokens[:, :step]], dim=1)
        expected = literal.logits({"input_ids": ids, "pixel_values": inputs["pixel_values"]}, chosen)
        differences.append(largest(found[0], expected))
    return max(differences)


def from_generation_without_a_cache(compress, model, method, prompt=PROMPT, budget=BUDGET):
    inputs = ask(prompt)
    compress(model, budget=budget, method=method)
    return apart(model, inputs, steps_of(model, inputs, use_cache=False))


def from_the_prompts_alone(compress, model, method):
    """Of a batch whose prompts have lengths and numbers of images of their own."""
    compress(model, budget=BUDGET, method=method)
    together = ask(PROMPT, TWO, SHORT)
    tokens, logits = steps_of(model, together)
    images, differences = (slice(0, 1), slice(1, 3), slice(3, 4)), []
    for index, own in enumerate(images):
        alone = steps_of(model, sample_of(together, index, own))
        same = torch.equal(tokens[index], alone[0][0])
        differences.append(largest(logits[:, index], alone[1][:, 0]) if same else float("inf"))
    return max(differences)


def from_one_conversation(compress, model, method):
    """A turn of text on the kept cache, against the same tokens in one call without a cache."""
    compress(model, budget=BUDGET, method=method)
    inputs = ask(PROMPT)
    # `generate` would take padding that was generated for padding of the next turn.
    options = {"suppress_tokens": [model.config.image_token_id, TOKEN_ID[PAD]]}
    first = greedy(model, inputs, 3, **options)
    question = ask("and where is the left object ? ASSISTANT:")["input_ids"][:, 1:]
    ids = torch.cat([first.sequences, question], dim=1)
    later = greedy(model, {"input_ids": ids}, 3, past_key_values=first.past_key_values, **options)
    whole = {"input_ids": later.sequences[:, :-1], "pixel_values": inputs["pixel_values"]}
    expected = model(**whole, use_cache=False).logits[0, -3:]
    return largest(torch.stack(later.logits)[:, 0], expected)


def scores_of_beams(compress, model, method):
    """Scores of beams, against the same tokens in one call without a cache."""
    compress(model, budget=BUDGET, method=method)
    inputs = ask(PROMPT)
    length = inputs["input_ids"].shape[1]
    beams = greedy(model, inputs, 4, num_beams=3, num_return_sequences=3, output_scores=True, length_penalty=0.0)
    differences = []
    for sequence, score in zip(beams.sequences, beams.sequences_scores, strict=True):
        whole = {"input_ids": sequence[None], "pixel_values": inputs["pixel_values"]}
        logits = model(**whole, use_cache=False).logits[0, length - 1 : -1]
        own = logits.log_softmax(-1).gather(1, sequence[length:, None]).sum()
        differences.append(float((score - own).abs()))
    return max(differences)


def from_itself_before(compress, model, method):
    inputs, before = ask(PROMPT), fingerprint(model)
    plain = steps_of(model, inputs)
    handle = compress(model, budget=BUDGET, method=method)
    steps_of(model, inputs)
    handle.remove()
    assert fingerprint(model) == before
    return apart(model, inputs, plain)


def from_asking_the_whole_conversation(compress, model, method):
    """With tokens chosen again by a later question: states of earlier calls must be gone from every layer."""
    compress(model, budget=BUDGET, method=method, reselect=True)
    inputs = ask(PROMPT)
    options = {"suppress_tokens": [model.config.image_token_id, TOKEN_ID[PAD]]}
    first = greedy(model, inputs, 3, **options)
    question = ask("USER: where is the left object ? ASSISTANT:")["input_ids"][:, 1:]
    ids = torch.cat([first.sequences, question], dim=1)
    later = greedy(model, {"input_ids": ids}, 3, past_key_values=first.past_key_values, **options)
    fresh = greedy(model, {"input_ids": ids, "pixel_values": inputs["pixel_values"]}, 3, **options)
    return largest(step_logits(later), step_logits(fresh))


# -- the checks --------------------------------------------------------------------------------------------------------

FEW = ["sliding, two rotary tables", "chunked", "linear", "mamba"]
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in KINDS]
)


@kinds
@pytest.mark.parametrize("method", ["covist-max", "covist-fixed"])
def test_full_budgets_are_the_plain_model_bit_for_bit(compress, kind, method):
    assert from_the_plain_model(compress, model_of(kind), method) == 0


@kinds
@pytest.mark.parametrize("method", ["covist-max", "covist-fixed", "divprune"])
def test_small_budgets_are_the_literal_reference(compress, kind, method):
    assert from_the_literal_reference(compress, model_of(kind), method) < TOLERANCE


@kinds
def test_two_images_are_the_literal_reference(compress, kind):
    assert from_the_literal_reference(compress, model_of(kind), "covist-max", TWO) < TOLERANCE


@kinds
def test_generation_with_a_cache_is_generation_without(compress, kind):
    assert from_generation_without_a_cache(compress, model_of(kind), "covist-fixed") < TOLERANCE


@kinds
def test_padded_batches_are_their_prompts_alone(compress, kind):
    assert from_the_prompts_alone(compress, model_of(kind), "covist-max") < TOLERANCE


@kinds
def test_a_turn_of_text_continues_the_cache(compress, kind):
    assert from_one_conversation(compress, model_of(kind), "covist-max") < TOLERANCE


@kinds
def test_beams_carry_their_own_states(compress, kind):
    assert scores_of_beams(compress, model_of(kind), "covist-max") < TOLERANCE


@kinds
def test_a_removed_handle_leaves_the_model_as_it_was(compress, kind):
    assert from_itself_before(compress, model_of(kind), "covist-max") == 0


@kinds
def test_bfloat16_gives_numbers(compress, kind):
    model = copy.deepcopy(model_of(kind)).to(torch.bfloat16)
    inputs = ask(PROMPT, SHORT).to(torch.bfloat16)
    compress(model, budget=BUDGET, method="covist-max")
    assert steps_of(model, inputs, 3)[1].isfinite().all()


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_choosing_again_forgets_the_states_of_recurrent_layers(compress, kind):
    assert from_asking_the_whole_conversation(compress, model_of(kind), "covist-fixed") < TOLERANCE


# -- reductions inside the decoder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["covist-pro", "fastv"])
@pytest.mark.parametrize(
    "kind", ["sliding, full without rotary", pytest.param("chunked", marks=pytest.mark.slow), "linear"]
)
def test_reductions_inside_the_decoder_are_the_literal_reference(compress, kind, method):
    assert from_the_literal_reference(compress, model_of(kind), method, budget=INSIDE) < TOLERANCE


@pytest.mark.parametrize("kind", ["sliding, two rotary tables", "chunked"])
def test_cut_caches_of_windows_continue(compress, kind):
    compress(model_of(kind), budget=BUDGET, method="clse")
    assert steps_of(model_of(kind), ask(PROMPT, SHORT))[1].isfinite().all()


def test_layers_that_share_keys_refuse_a_reduction_between_them(compress):
    model = model_of("sliding, shared keys")
    compress(model, budget=INSIDE, method="fastv")
    with pytest.raises(CovistError, match="keys of another layer"):
        model(**ask(PROMPT))


@pytest.mark.parametrize("kind", ["sliding", "sliding, shared keys"])
def test_caches_made_without_a_configuration_continue(compress, kind):
    model = model_of(kind)
    compress(model, budget=BUDGET, method="covist-max")
    expected = steps_of(model, ask(PROMPT), 3)
    assert apart(model, ask(PROMPT), expected, steps=3, past_key_values=DynamicCache()) < TOLERANCE
