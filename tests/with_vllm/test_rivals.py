"""Every method that acts before the decoder, on the embedded model."""

from __future__ import annotations

import pytest
import torch
from support.checkpoints import saved_with
from support.vllm_reference import compressed, largest_difference

import covist
from covist import tiny
from covist.vllm.settings import Serving

pytestmark = pytest.mark.vllm

ARCHITECTURE = "CovistLlavaForConditionalGeneration"
WITH_QUESTION = ("anchorprune", "cdpruner", "mmtok")
COLUMNS = 32
STABLE = {"vispruner": "vispruner:important=1"}
"""VisPruner's diverse half splits an order by attention again and again: noise of 1e-7 changes a third of the tokens,
in transformers too. What is compared does without that half."""

BY_ROUNDING = ("tome",)
"""It sorts all tokens again and again, so the last bits decide what is merged with what; answers are compared here."""


def servable(method: str) -> bool:
    try:
        return bool(Serving.read({"method": method, "budget": 40}))
    except covist.CovistError:
        return False


METHODS = [name for name in covist.available_methods() if servable(name)]


def test_no_method_that_acts_before_the_decoder_is_missing():
    schedules = {name: covist.create_method(name).schedule(32, 64, 576) for name in covist.available_methods()}
    before = {name for name, one in schedules.items() if len(one.stages) == 1 and one.cache_cut_from is None}
    two_biases_of_one_key = {"restore-divprune", "restore-holov", "restore-vispruner"}
    before_the_tower = {"pixelprune"}
    assert before - {*METHODS} == two_biases_of_one_key | before_the_tower


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    _, _, (model, tokenizer) = tiny.load()
    return (model, tokenizer), saved_with(model, tokenizer, tmp_path_factory.mktemp("clip"))


@pytest.mark.parametrize("method", METHODS)
def test_a_rival_gives_the_same_answers_as_in_transformers(engine, embedded, asks, clip, method):
    model, processor, folder = embedded
    settings = {"method": STABLE.get(method, method), "budget": 40}
    options = dict(settings)
    if method in WITH_QUESTION:
        settings |= {"instruction": True, "clip": clip[1]}
        options |= {"clip": clip[0], "instruction": None}
    if covist.create_method(method).tracker is not None:
        settings["concentration"] = options["concentration"] = 0.05
    completions = engine.serve(folder, ARCHITECTURE, settings).generate(asks[:6])
    difference = largest_difference(completions, compressed(model, processor, asks[:6], columns=COLUMNS, **options))
    assert difference < 1e-4 or method in BY_ROUNDING


def test_tome_agrees_where_few_tokens_are_merged(engine, embedded, asks):
    """So that rounding decides about few pairs: a mistake would show in every image, rounding only in some."""
    model, processor, folder = embedded
    settings = {"method": "tome", "budget": 572}
    completions = engine.serve(folder, ARCHITECTURE, settings).generate(asks[::3])
    references = compressed(model, processor, asks[::3], columns=COLUMNS, **settings)
    pairs = zip(completions, references, strict=True)
    differences = [largest_difference([one], [reference]) for one, reference in pairs]
    assert sum(difference < 1e-4 for difference in differences) >= 4, differences


def test_rounding_alone_moves_what_tome_says(embedded, asks):
    """In transformers, noise of the size of rounding changes log-probabilities as far as another engine does."""
    model, processor, _ = embedded
    settings = {"method": "tome", "budget": 40}
    exact = compressed(model, processor, asks[::3], **settings)

    def noisy(module, inputs, output):
        generator = torch.Generator().manual_seed(1)
        return output + 1e-6 * output.abs().max() * torch.randn(output.shape, generator=generator)

    hook = model.model.multi_modal_projector.register_forward_hook(noisy)
    moved = compressed(model, processor, asks[::3], **settings)
    hook.remove()
    assert [ids for ids, _ in moved] == [ids for ids, _ in exact]
    pairs = zip(moved, exact, strict=True)
    assert max(float((one - other).abs().max()) for (_, one), (_, other) in pairs) > 0.2
