"""A budget of all tokens, or a method whose reductions do nothing, is the model without compression."""

import pytest
import torch
from support.llava import LAYERS, TOKENS, ask
from support.requests import assert_same, greedy, kept_keys

from covist.methods.covist import CovistPro
from covist.schedule import Schedule

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.mark.parametrize("budget", [TOKENS, TOKENS + 100, 1.0, "100%"])
def test_budget_of_all_tokens_is_the_plain_model(model, strategy, compress, budget):
    inputs = ask(PROMPT)
    plain = greedy(model, inputs)
    handle = compress(model, budget=budget, strategy=strategy)
    assert_same(greedy(model, inputs), plain)
    assert handle.report.images[0].tokens_per_layer == (TOKENS,) * LAYERS
    assert handle.report.kv_bytes == handle.report.kv_bytes_uncompressed


class IdlePro(CovistPro):
    """Pro whose stages keep every token."""

    name = "idle-pro"

    def schedule(self, layers, budget, tokens):
        depths = [depth for depth, _ in super().schedule(layers, 4, 64).stages]
        return Schedule(layers, tuple((depth, tokens) for depth in depths))


def test_stages_that_keep_every_token_are_the_plain_model(model, compress):
    inputs = ask(PROMPT)
    plain = greedy(model, inputs)
    compress(model, budget=8, method=IdlePro())
    idle = greedy(model, inputs)
    assert_same(idle, plain)
    assert kept_keys(idle.past_key_values) == kept_keys(plain.past_key_values)


def test_prompt_without_image_is_untouched(model, strategy, compress):
    inputs = ask("USER: what color is this ? ASSISTANT:")
    plain = greedy(model, inputs)
    handle = compress(model, budget=16, strategy=strategy)
    output = greedy(model, inputs)
    assert torch.equal(torch.stack(output.logits), torch.stack(plain.logits))
    assert handle.report is None


def test_small_budget_changes_the_logits(model, strategy, compress):
    inputs = ask(PROMPT)
    plain = torch.stack(greedy(model, inputs, 1).logits)
    compress(model, budget=16, strategy=strategy)
    assert (torch.stack(greedy(model, inputs, 1).logits) - plain).abs().max() > 1e-2
