"""Every kind of decoder layer of transformers: full budgets are the plain model, small ones a literal reference."""

import pytest
from support import checks
from support.checks import TOLERANCE, apart
from support.layer_kinds import KINDS, KindOfLayer, model_of
from support.llava import ask
from transformers import DynamicCache

from covist.errors import CovistError
from covist.methods.create import create_method

INSIDE = 72  # a layer average for methods that reduce inside the decoder


@pytest.fixture
def compress(compress):
    """Methods without a concentration reference have nothing to freeze."""

    def start(model, method, **options):
        if isinstance(method, str) and create_method(method).tracker is None:
            options["concentration"] = None
        return compress(model, method=method, **options)

    return start


FEW = ["sliding, two rotary tables", "chunked", "linear", "mamba"]
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in KINDS]
)


@kinds
@pytest.mark.parametrize("method", ["covist-max", "covist-fixed"])
def test_full_budgets_are_the_plain_model_bit_for_bit(compress, kind, method):
    assert checks.from_the_plain_model(compress, KindOfLayer(kind), method) == 0


@kinds
@pytest.mark.parametrize("method", ["covist-max", "covist-fixed", "divprune"])
def test_small_budgets_are_the_literal_reference(compress, kind, method):
    assert checks.from_the_literal_reference(compress, KindOfLayer(kind), method) < TOLERANCE


@kinds
def test_two_images_are_the_literal_reference(compress, kind):
    assert checks.from_the_literal_reference(compress, KindOfLayer(kind), "covist-max", images=2) < TOLERANCE


@kinds
def test_generation_with_a_cache_is_generation_without(compress, kind):
    assert checks.from_generation_without_a_cache(compress, KindOfLayer(kind), "covist-fixed") < TOLERANCE


@kinds
def test_padded_batches_are_their_prompts_alone(compress, kind):
    assert checks.from_the_prompts_alone(compress, KindOfLayer(kind), "covist-max") < TOLERANCE


@kinds
def test_a_turn_of_text_continues_the_cache(compress, kind):
    assert checks.from_one_conversation(compress, KindOfLayer(kind), "covist-max") < TOLERANCE


@kinds
def test_beams_carry_their_own_states(compress, kind):
    assert checks.scores_of_beams(compress, KindOfLayer(kind), "covist-max") < TOLERANCE


@kinds
def test_a_removed_handle_leaves_the_model_as_it_was(compress, kind):
    assert checks.from_itself_before(compress, KindOfLayer(kind), "covist-max") == 0


@kinds
def test_bfloat16_gives_numbers(compress, kind):
    assert checks.in_bfloat16(compress, KindOfLayer(kind), "covist-max").isfinite().all()


# -- reductions inside the decoder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["covist-pro", "fastv"])
@pytest.mark.parametrize(
    "kind", ["sliding, full without rotary", pytest.param("chunked", marks=pytest.mark.slow), "linear"]
)
def test_reductions_inside_the_decoder_are_the_literal_reference(compress, kind, method):
    assert checks.from_the_literal_reference(compress, KindOfLayer(kind), method, budget=INSIDE) < TOLERANCE


@pytest.mark.parametrize("kind", ["sliding, two rotary tables", "chunked"])
def test_cut_caches_of_windows_continue(compress, kind):
    subject = KindOfLayer(kind)
    compress(subject.model, budget=subject.budget, method="clse")
    assert subject.steps(subject.batch()[0])[1].isfinite().all()


def test_layers_that_share_keys_refuse_a_reduction_between_them(compress):
    model = model_of("sliding, shared keys")
    compress(model, budget=INSIDE, method="fastv")
    with pytest.raises(CovistError, match="keys of another layer"):
        model(**ask("USER: <image> what color is this ? ASSISTANT:"))


@pytest.mark.parametrize("kind", ["sliding", "sliding, shared keys"])
def test_caches_made_without_a_configuration_continue(compress, kind):
    subject = KindOfLayer(kind)
    compress(subject.model, budget=subject.budget, method="covist-max")
    inputs = subject.prompt()
    expected = subject.steps(inputs, 3)
    assert apart(subject.steps(inputs, 3, past_key_values=DynamicCache()), expected) < TOLERANCE
