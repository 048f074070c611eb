"""Layers that choose some of their keys, or count tokens: they choose among the keys that are left, and count all."""

from functools import partial

import pytest
import torch
from support import checks
from support.checks import apart
from support.layer_kinds import KindOfLayer, build
from support.llava import ask

from covist.engine.attention import interface
from covist.errors import CovistError

CHOOSING = {
    "chosen keys": {"index_topk": 8, "index_n_heads": 16},  # of few heads, many scores are exactly 0
    "chosen keys, shared": {"index_topk": 8, "index_n_heads": 16},
    "chosen blocks": {"index_topk_blocks": 3},
    "chosen pools": {"index_topk": 8, "index_n_heads": 16},
    "chosen pools, rotary": {"indexer_budget": 8, "indexer_n_heads": 8},
}
COUNTING = {
    "chunked": {"floor_scale": 16},
    "counted distances": {"log_scaling_n_floor": 8, "log_scaling_alpha": 0.5},
}
TOLERANCE = (
    5e-5  # indexers multiply rounding: other CPUs reach 2e-5, and a wrong choice of keys is a thousand times that
)
INSIDE = 72  # a layer average for methods that reduce inside the decoder
BY_OPTION = ["chosen keys", "chosen blocks"]
choosing = pytest.mark.parametrize("kind", CHOOSING)
both = pytest.mark.parametrize("kind", [*CHOOSING, *COUNTING])


@pytest.fixture
def compress(compress):
    """covist-max has no concentration reference to freeze."""
    return partial(compress, concentration=None)


def subject_of(kind):
    return KindOfLayer(kind, **{**CHOOSING, **COUNTING}[kind])


@both
def test_full_budgets_are_the_plain_model_bit_for_bit(compress, kind):
    assert checks.from_the_plain_model(compress, subject_of(kind), "covist-max") == 0


@both
def test_small_budgets_are_the_literal_reference(compress, kind):
    assert checks.from_the_literal_reference(compress, subject_of(kind), "covist-max") < TOLERANCE


@both
def test_generation_with_a_cache_is_generation_without(compress, kind):
    assert checks.from_generation_without_a_cache(compress, subject_of(kind), "covist-max") < TOLERANCE


@both
def test_a_turn_of_text_continues_the_cache(compress, kind):
    assert checks.from_one_conversation(compress, subject_of(kind), "covist-max") < TOLERANCE


@pytest.mark.parametrize("kind", ["chosen keys", "chosen keys, shared", "chosen pools", "chosen pools, rotary"])
def test_padded_batches_are_their_prompts_alone(compress, kind):
    assert checks.from_the_prompts_alone(compress, subject_of(kind), "covist-max") < TOLERANCE


def test_all_blocks_of_a_padded_prompt_are_seen(compress):
    """Padding moves the borders of blocks, so fewer blocks would be others; the plain model does not even see all."""
    assert checks.from_the_prompts_alone(compress, KindOfLayer("chosen blocks"), "covist-max") < TOLERANCE


def test_distances_of_padded_prompts_are_those_of_their_tokens(compress):
    assert checks.from_the_prompts_alone(compress, KindOfLayer("counted distances"), "covist-max") < TOLERANCE


@both
def test_a_removed_handle_leaves_the_model_as_it_was(compress, kind):
    assert checks.from_itself_before(compress, subject_of(kind), "covist-max") == 0


# -- what the checks above would not see without it --------------------------------------------------------------------


@pytest.mark.parametrize("kind", BY_OPTION)
def test_keys_that_were_not_chosen_are_hidden(compress, kind, monkeypatch):
    """Under covist's name, these layers leave it to the attention function."""
    subject = subject_of(kind)
    compress(subject.model, budget=subject.budget, method="covist-max")
    sparse = subject.steps(subject.prompt())
    monkeypatch.setattr(interface, "of_chosen_keys", lambda mask, *others: mask)
    assert apart(subject.steps(subject.prompt()), sparse) > 100 * TOLERANCE


@pytest.mark.parametrize("kind", COUNTING)
def test_counting_only_the_kept_tokens_would_give_other_results(compress, kind, monkeypatch):
    subject = subject_of(kind)
    compress(subject.model, budget=subject.budget, method="covist-max")
    right = subject.steps(subject.prompt())
    monkeypatch.setattr(interface, "growth_of", lambda module: None)
    assert apart(subject.steps(subject.prompt()), right) > 10 * TOLERANCE


# -- reductions inside the decoder -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["covist-pro", "fastv"])
@pytest.mark.parametrize("kind", ["chosen blocks", "chunked"])
def test_reductions_inside_the_decoder_are_the_literal_reference(compress, kind, method):
    assert checks.from_the_literal_reference(compress, subject_of(kind), method, budget=INSIDE) < TOLERANCE


@pytest.mark.parametrize("kind", ["chosen keys", "chosen blocks", "chosen pools, rotary"])
def test_caches_of_layers_with_fewer_keys_continue(compress, kind):
    """apet reads no attention. Positions that all layers share in the cache are those of the first stage only."""
    subject = subject_of(kind)
    subject.budget = INSIDE
    assert checks.from_generation_without_a_cache(compress, subject, "apet") < TOLERANCE


def test_a_choice_among_other_tokens_is_refused(compress):
    model = build("chosen keys, shared", indexer_types=["full", "full", "shared", "shared"])
    compress(model, budget=INSIDE, method="apet")
    with pytest.raises(CovistError, match="keys that an earlier layer chose"):
        model(**ask("USER: <image> what color is this ? ASSISTANT:"))


# -- a batch whose prompts had one length before their images were reduced ---------------------------------------------


@pytest.mark.parametrize("kind", ["chosen pools, rotary", "counted distances"])
def test_padding_that_compression_brings_stays_out_of_convolutions(compress, kind):
    subject = KindOfLayer(kind)
    compress(subject.model, budget=subject.budget, method="covist-max")
    image = subject.prompt()
    length = image["input_ids"].shape[1]
    words = ask("USER: <image> where is the left object ? ASSISTANT:")["input_ids"][:, -7:]
    text = words.repeat(1, length // 7 + 1)[:, :length]
    together = {"input_ids": torch.cat([image["input_ids"], text]), "pixel_values": image["pixel_values"]}
    together["attention_mask"] = torch.ones_like(together["input_ids"])
    tokens, logits = subject.steps(together, 3)
    assert apart((tokens[:1], logits[:, :1]), subject.steps(image, 3)) < TOLERANCE
