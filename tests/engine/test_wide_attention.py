"""Flash attention: the bias travels in wide heads, through transformers' own flash path with kernels in plain torch."""

from dataclasses import replace

import pytest
import torch
from support import flash
from support.cases import CASES
from support.conversations import ONE, padded_conversation, single_conversation
from support.llava import ask
from support.requests import greedy, step_logits
from transformers import LlamaConfig, LlamaModel

from covist.contract.method import AttentionRule
from covist.engine.attention.interface import backend_of
from covist.engine.attention.mask import WideStage
from covist.engine.decoder import FrozenDecoder
from covist.engine.sequence.ledger import Ledger
from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import fit_series


@pytest.fixture
def flash_on(monkeypatch):
    return lambda model, name=flash.FLASH: flash.switch_on(monkeypatch, model, name)


@pytest.mark.parametrize(
    ("name", "request_of"), [(flash.FLASH, padded_conversation), (flash.HUB_KERNEL, single_conversation)]
)
def test_the_weights_are_those_of_an_explicit_bias(model, strategy, compress, flash_on, request_of, name):
    compress(model, budget=24, strategy=strategy, distance=False)
    expected = request_of(model)
    flash_on(model, name)
    torch.testing.assert_close(request_of(model), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["covist-fixed", "covist-pro", "restore-divprune", "tome", "fastv"])
def test_with_the_same_series_every_rule_is_that_of_an_explicit_bias(model, method, compress, flash_on, monkeypatch):
    frozen = {} if method.startswith("covist") else {"concentration": None}
    compress(model, budget=24, method=method, **frozen)
    flash.put_series_into_masks(monkeypatch)
    expected = padded_conversation(model), single_conversation(model)
    flash_on(model)
    torch.testing.assert_close((padded_conversation(model), single_conversation(model)), expected, atol=2e-4, rtol=2e-4)


GROUPED = [case for case in CASES if "grouped" in case.name]


@pytest.mark.parametrize(
    ("case", "strategy"),
    [pytest.param(case, ("fixed", "pro")[place % 2], id=case.name) for place, case in enumerate(GROUPED)],
    indirect=["strategy"],
)
def test_newlines_and_several_axes_are_served_alike(case, strategy, flash_on, compress, monkeypatch):
    inputs = case.ask("{image} what", "where {image} is {image}")
    compress(case.model, processor=case.processor(), budget=12, strategy=strategy)
    flash.put_series_into_masks(monkeypatch)
    expected = step_logits(greedy(case.model, inputs))
    flash_on(case.model)
    torch.testing.assert_close(step_logits(greedy(case.model, inputs)), expected, atol=2e-4, rtol=2e-4)


def test_the_series_in_place_of_the_factor_moves_the_answer_less_than_leaving_the_factor_out(
    model, strategy, compress, flash_on
):
    handle = compress(model, budget=24, strategy=strategy)
    exact = single_conversation(model)[0].softmax(-1)
    flash_on(model)
    with_series = single_conversation(model)[0].softmax(-1)
    handle.remove()
    compress(model, budget=24, strategy=strategy, distance=False)
    without = single_conversation(model)[0].softmax(-1)
    moved = [(0.5 * (found - exact).abs().sum()).item() for found in (with_series, without)]
    assert 0 < moved[0] < 0.5 * moved[1]


TABLE = DistanceTable(torch.tensor([1.0, 0.1]))


def added_by(rule, log_weight):
    """What wide heads add in two layers to the logits of the last of three tokens, the first two of an image."""
    ledger = Ledger.of_text(torch.tensor([[0, 5, 9]]), torch.ones(1, 3, dtype=torch.bool))
    keys = replace(ledger.joined, image=torch.tensor([[0, 0, -1]]), log_weight=torch.tensor([log_weight]))
    bias = WideStage(replace(ledger, joined=keys), 1, rule)
    queries, keys = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 3, 8)
    wide = [bias.widen(layer, queries, keys, scaling=0.5) for layer in (0, 1)]
    return [(0.5 * query @ key.mT)[0, 0, 0] for query, key in wide]


def test_layers_without_rotary_positions_take_the_weights_alone():
    rule = AttentionRule(torch.tensor([[1.0], [2.0]]), distances=(TABLE, None))
    first, second = added_by(rule, [0.2, 0.7, 0.0])
    factor = fit_series(TABLE, 3)(torch.tensor([[9], [4]])).float()
    torch.testing.assert_close(first, torch.tensor([0.2 + factor[0], 0.7 + factor[1], 0.0]))
    torch.testing.assert_close(second, torch.tensor([2 * 0.2, 2 * 0.7, 0.0]))


@pytest.mark.parametrize("without_distance", [frozenset(), frozenset({0}), frozenset({0, 1})])
def test_a_uniform_first_layer_has_mean_weights_with_and_without_rotary_positions(without_distance):
    tables = tuple(None if layer in without_distance else TABLE for layer in range(2))
    rule = AttentionRule(torch.ones(2, 1), distances=tables, mean_weights=frozenset({0}))
    mean = float(torch.tensor([0.2, 0.8]).exp().mean().log())
    factor = fit_series(TABLE, 3)(torch.tensor([[9], [4]])).float()
    for layer, (added, weights) in enumerate(
        zip(added_by(rule, [0.2, 0.8, 0.0]), ([mean, mean], [0.2, 0.8]), strict=True)
    ):
        distance = torch.zeros(2) if layer in without_distance else factor
        torch.testing.assert_close(added[:2], torch.tensor(weights) + distance)


def test_the_cache_holds_plain_keys(model, strategy, compress, flash_on):
    flash_on(model)
    compress(model, budget=24, strategy=strategy)
    width = model.config.text_config.head_dim
    assert {layer.keys.shape[-1] for layer in greedy(model, ask(ONE), 2).past_key_values.layers} == {width}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_with_an_explicit_bias(compress, flash_on, dtype, grouped_query):
    """Against the same model in float32: neither way of carrying the weights is clearly worse."""
    inputs, errors = ask(ONE), []
    compress(grouped_query, budget=24, distance=False, instruction="what color is this ?")
    exact = step_logits(greedy(grouped_query, inputs, 1))
    grouped_query.to(dtype)
    try:
        for name in ("sdpa", flash.FLASH):
            flash_on(grouped_query, name)
            half = {**inputs, "pixel_values": inputs["pixel_values"].to(dtype)}
            errors.append(float((step_logits(greedy(grouped_query, half, 1)).float() - exact).abs().mean()))
    finally:
        grouped_query.float()
    assert errors[1] < 2 * errors[0]


# -- the switch --------------------------------------------------------------------------------------------------------


def test_the_attention_of_the_model_comes_back(model, compress, flash_on):
    flash_on(model)
    config = model.config.text_config
    plain = single_conversation(model)
    handle = compress(model, budget=24)
    single_conversation(model)
    assert config._attn_implementation == f"covist:{flash.FLASH}"
    assert backend_of(model.model.language_model) == flash.FLASH
    assert model.config.vision_config._attn_implementation == "sdpa"
    handle.remove()
    assert config._attn_implementation == flash.FLASH
    assert torch.equal(single_conversation(model), plain)


def test_prompts_without_images_are_the_plain_models(model, compress, flash_on):
    flash_on(model)
    text = ask("USER: is there a word ? ASSISTANT:", "what")
    plain = step_logits(greedy(model, text))
    compress(model, budget=24)
    single_conversation(model)  # our function stands in front of the kernel from here on
    assert torch.equal(step_logits(greedy(model, text)), plain)


def test_a_budget_of_all_tokens_is_the_plain_model(model, strategy, compress, flash_on):
    flash_on(model)
    plain = padded_conversation(model)
    compress(model, budget=144, strategy=strategy)
    torch.testing.assert_close(padded_conversation(model), plain, atol=1e-5, rtol=1e-5)


def test_the_backend_may_be_changed_at_any_time(model, compress, flash_on):
    handle = compress(model, budget=24, distance=False)
    expected = single_conversation(model)
    for name in (flash.FLASH, "eager", flash.HUB_KERNEL, "sdpa"):
        flash_on(model, name)
        torch.testing.assert_close(single_conversation(model), expected, atol=1e-4, rtol=1e-4)
    handle.remove()
    assert model.config.text_config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["paged|eager", "my_attention"])
def test_unknown_attention_names_the_supported_backends(multi_head, compress, monkeypatch, name):
    message = "is not known to support a bias; use one of eager, sdpa, flex_attention"
    handle = compress(multi_head, budget=24)
    monkeypatch.setattr(multi_head.config.text_config, "_attn_implementation", name)
    with pytest.raises(ValueError, match=message):  # switched under a running handle
        multi_head(**ask(ONE))
    handle.remove()
    with pytest.raises(ValueError, match=message):  # and at the start
        compress(multi_head, budget=24)


def test_heads_that_fill_the_kernel_already_are_refused():
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=256
    )
    decoder = FrozenDecoder(LlamaModel(config))
    decoder.module.config._attn_implementation = flash.FLASH
    with pytest.raises(ValueError, match="has no room for a bias in heads of 256; use one of eager, sdpa"):
        decoder.check_backend()
