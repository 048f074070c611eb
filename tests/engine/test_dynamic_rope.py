"""Dynamic RoPE changes its frequencies with the length of a prompt: the distance factor uses those of the call."""

import copy

import pytest
import torch
from support.llava import ask
from support.requests import greedy, step_logits
from support.text_models import GROUPED, build, text_config

SHORT = "USER: what color is this ? ASSISTANT:"
LONG = "USER: <image> what color is this ? ASSISTANT:"
LONGER = "USER: <image> and <image> what color is this ? ASSISTANT:"
KINDS = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.0, 1.0, 1.0],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
}
DISTANCE_ONLY = {"head_gains": False}
"""Head gains belong to the weights and to the frequencies that the model was loaded with."""


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def model(request):
    """A decoder whose frequencies change beyond 64 tokens."""
    rope = {"rope_parameters": dict(request.param), "max_position_embeddings": 64}
    return build(text_config("LlamaConfig", {**GROUPED, **rope}))


def frozen_at(model, inputs):
    """The same model with fixed frequencies: those that it uses for a prompt."""
    model(**inputs)
    rotary = model.model.language_model.rotary_emb
    frequencies, scaling = rotary.inv_freq.clone(), rotary.attention_scaling
    fixed = copy.deepcopy(model)
    text = {**GROUPED, "max_position_embeddings": 4096}
    other = build(text_config("LlamaConfig", text)).model.language_model.rotary_emb
    other.inv_freq.copy_(frequencies)
    other.attention_scaling = scaling
    fixed.model.language_model.rotary_emb = other
    model(**ask(SHORT))  # which sets the frequencies back
    return fixed


def compressed(model, compress, strategy, inputs):
    handle = compress(model, budget=24, strategy=strategy, **DISTANCE_ONLY)
    logits = model(**inputs).logits
    kept = [[stage.kept.tolist() for stage in image.stages] for image in handle.report.images]
    handle.remove()
    return logits, kept


@pytest.mark.parametrize("prompt", [LONG, LONGER])
def test_distances_use_the_frequencies_of_the_call(model, compress, strategy, prompt):
    inputs = ask(prompt)
    fixed = frozen_at(model, inputs)
    assert not torch.equal(
        fixed.model.language_model.rotary_emb.inv_freq, model.model.language_model.rotary_emb.inv_freq
    )
    torch.testing.assert_close(model(**inputs).logits, fixed(**inputs).logits)
    expected, expected_kept = compressed(fixed, compress, strategy, inputs)
    model(**ask(SHORT))
    found, kept = compressed(model, compress, strategy, inputs)
    assert kept == expected_kept
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_prompts_of_different_lengths_take_turns(model, compress, strategy):
    """What a call uses depends on its own length, not on the calls before it."""
    prompts = [ask(LONG), ask(LONGER)]
    expected = [compressed(frozen_at(model, inputs), compress, strategy, inputs)[0] for inputs in prompts]
    compress(model, budget=24, strategy=strategy, **DISTANCE_ONLY)
    for turn in (0, 1, 0):
        model(**ask(SHORT))
        torch.testing.assert_close(model(**prompts[turn]).logits, expected[turn], atol=1e-4, rtol=1e-4)


def test_removal_restores_the_plain_answer(model, compress, strategy):
    inputs = ask(LONG)
    plain = step_logits(greedy(model, inputs, 3))
    model(**ask(SHORT))
    handle = compress(model, budget=24, strategy=strategy)
    greedy(model, inputs, 3)
    handle.remove()
    model(**ask(SHORT))
    assert torch.equal(step_logits(greedy(model, inputs, 3)), plain)
