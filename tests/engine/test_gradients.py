"""Gradients flow through a compressed prompt into everything that its content came from."""

import copy

import pytest
import torch
from support.llava import TOKENS, ask, build_llava
from support.requests import greedy

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
PARTS = {
    "tower": "model.vision_tower.encoder.layers.0.self_attn.v_proj.weight",
    "patch embedding": "model.vision_tower.embeddings.patch_embedding.weight",
    "projector": "model.multi_modal_projector.linear_1.weight",
    "embeddings": "model.language_model.embed_tokens.weight",
    "decoder": "model.language_model.layers.1.mlp.up_proj.weight",
    "head": "lm_head.weight",
}


@pytest.fixture
def own_model():
    """Its gradients are its own."""
    return build_llava(kv_heads=2)


def loss_of(model, inputs):
    """The usual loss over the text after the image."""
    labels = inputs["input_ids"].clone()
    labels[labels == model.config.image_token_id] = -100
    with torch.enable_grad():
        logits = model(**inputs, use_cache=False).logits[:, -5:]
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, -4:].flatten())


def gradients(model, inputs):
    model.zero_grad()
    loss_of(model, inputs).backward()
    named = dict(model.named_parameters())
    return {part: named[name].grad for part, name in PARTS.items()}


@pytest.mark.parametrize("part", PARTS)
def test_gradients_reach_every_part(own_model, strategy, compress, part):
    compress(own_model, budget=24, strategy=strategy)
    found = gradients(own_model, ask(PROMPT))[part]
    assert found is not None and torch.isfinite(found).all()
    assert found.abs().max() > 0


@pytest.mark.parametrize("method", ["covist-max", "divprune", "tome", "fastv"])
def test_other_methods_let_gradients_through(own_model, compress, method):
    compress(own_model, budget=48, method=method, concentration=None)
    for part, found in gradients(own_model, ask(PROMPT)).items():
        assert found is not None and found.abs().max() > 0, part


def test_budget_of_all_tokens_gives_the_plain_gradients(own_model, strategy, compress):
    inputs = ask(PROMPT)
    plain = gradients(own_model, inputs)
    compress(own_model, budget=TOKENS, strategy=strategy)
    for part, found in gradients(own_model, inputs).items():
        assert found is not None, part
        torch.testing.assert_close(
            found, plain[part], atol=1e-5, rtol=1e-3, msg=lambda text, part=part: f"{part} {text}"
        )


def test_gradients_of_pixels(own_model, strategy, compress):
    """For attributions: which pixels the answer depends on."""
    compress(own_model, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    inputs["pixel_values"] = inputs["pixel_values"].clone().requires_grad_()
    loss_of(own_model, inputs).backward()
    assert inputs["pixel_values"].grad is not None and inputs["pixel_values"].grad.abs().max() > 0


def test_gradients_do_not_change_what_is_chosen(own_model, strategy, compress):
    handle, inputs = compress(own_model, budget=24, strategy=strategy), ask(PROMPT)
    expected = own_model(**inputs).logits
    kept = [stage.kept for stage in handle.report.images[0].stages]
    with torch.enable_grad():
        found = own_model(**inputs).logits
    assert all(torch.equal(a.kept, b) for a, b in zip(handle.report.images[0].stages, kept, strict=True))
    torch.testing.assert_close(found.detach(), expected, atol=1e-5, rtol=1e-5)


def test_training_step_lowers_the_loss(own_model, strategy, compress):
    """The projector alone, as a first stage of training has it: a step along its gradient must help."""
    compress(own_model, budget=24, strategy=strategy)
    inputs = ask(PROMPT)
    projector = list(own_model.model.multi_modal_projector.parameters())
    before = loss_of(own_model, inputs)
    before.backward()
    steps = [parameter.grad for parameter in projector]
    assert all(step is not None for step in steps)
    length = 1e-3 / torch.stack([step.square().sum() for step in steps]).sum().sqrt()
    for parameter, step in zip(projector, steps, strict=True):
        parameter.sub_(length * step)
    assert loss_of(own_model, inputs) < before


# -- inference mode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("during", ["compress", "the first call", "using"])
def test_backward_after_inference_mode(own_model, strategy, compress, during):
    """Gains and tables that were computed in inference mode must not end up in a graph."""
    inputs = ask(PROMPT)
    other = copy.deepcopy(own_model)
    compress(other, budget=24, strategy=strategy)
    expected = loss_of(other, inputs)
    if during == "compress":
        with torch.inference_mode():
            compress(own_model, budget=24, strategy=strategy)
    else:
        handle = compress(own_model, budget=24, strategy=strategy)
        with torch.inference_mode():
            if during == "using":
                with handle.using(strategy=strategy, concentration=0.05):
                    greedy(own_model, inputs, 2)
            else:
                greedy(own_model, inputs, 2)
    loss = loss_of(own_model, inputs)
    loss.backward()
    torch.testing.assert_close(loss, expected)
