"""Qwen2.5-VL: incoming attention, window order, merge groups, 3-D positions."""

import pytest
import torch
from support.captures import captured
from support.families import smooth_image
from support.ledgers import ledgers
from support.matrix.qwen2_5_vl import qwen, qwen_inputs, qwen_processor
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

import covist
from covist.engine.rotation import rotary_axes
from covist.families import incoming

PROMPT = "<|im_start|>user{image}what is the colour of this ?<|im_end|><|im_start|>assistant"
MODEL = qwen()
TOKENS = MODEL.config.vision_config.spatial_merge_size**2


@pytest.mark.parametrize("size", [(131, 170), (300, 60), (87, 199)])
def test_signals_are_those_of_the_last_full_attention_block_in_reading_order(size, monkeypatch):
    inputs = qwen_inputs([PROMPT], [smooth_image(*size)])
    (signals,) = captured(MODEL, inputs)
    probabilities, keys = _dense_block(monkeypatch, inputs)
    order = modeling_qwen2_5_vl.get_vision_window_index(inputs.image_grid_thw, 2, 56, 14)[0]
    assert order.tolist() != sorted(order.tolist())  # windows do shuffle the tokens of these images
    attention, descriptors = torch.empty(len(order)), torch.empty(len(order), 32)
    for place, token in enumerate(order.tolist()):
        group = slice(TOKENS * place, TOKENS * (place + 1))
        attention[token] = probabilities.mean((0, 1))[group].sum()
        descriptors[token] = keys[group].mean(0)
    torch.testing.assert_close(signals.attention[0, 0], attention, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(signals.keys, descriptors, atol=1e-5, rtol=1e-4)
    rows, columns = inputs.image_grid_thw[0, 1:].tolist()
    assert signals.grid.views == ((rows // 2, columns // 2),)


def _dense_block(monkeypatch, inputs):
    """Attention [heads, n, n] and keys before rotary [n, dim] of block 2, as eager attention computes them."""
    block = MODEL.model.visual.blocks[2].attn
    seen = {}
    dense = modeling_qwen2_5_vl.eager_attention_forward

    def eager(module, *args, **kwargs):
        output, weights = dense(module, *args, **kwargs)
        if module is block:
            seen["probabilities"] = weights[0]
        return output, weights

    monkeypatch.setattr(modeling_qwen2_5_vl, "eager_attention_forward", eager)
    hook = block.qkv.register_forward_hook(lambda module, args, output: seen.update(keys=output[:, 32:64]))
    MODEL.model.visual.set_attn_implementation("eager")
    with torch.no_grad():
        MODEL(**inputs)
    MODEL.model.visual.set_attn_implementation("sdpa")
    hook.remove()
    return seen["probabilities"], seen["keys"]


def test_large_images_are_asked_in_a_checkerboard_unless_exact_attention_is_requested(monkeypatch):
    inputs = qwen_inputs([PROMPT], [smooth_image(300, 60)])
    monkeypatch.setattr(incoming, "ALL_QUERY_UP_TO", 0)

    def attention(**options):
        with covist.compress(MODEL, qwen_processor(), budget=8, **options) as handle, torch.no_grad():
            MODEL.get_image_features(inputs.pixel_values, inputs.image_grid_thw, return_dict=True)
            return handle._hooks.encoded.all()[0].attention[0, 0]

    probabilities, _ = _dense_block(monkeypatch, inputs)  # [heads, patches, patches] in window order
    order = modeling_qwen2_5_vl.get_vision_window_index(inputs.image_grid_thw, 2, 56, 14)[0]
    diagonals = torch.tensor([[1.0, 0, 0, 1], [0, 1, 1, 0]]).repeat(1, len(order))  # who asks in the two heads
    estimate = torch.einsum("hq,hqk->k", diagonals, probabilities) / diagonals.sum()
    for per_patch, options in ((probabilities.mean((0, 1)), {"exact_attention": True}), (estimate, {})):
        per_token = per_patch.view(-1, TOKENS).sum(1)[order.argsort()]
        torch.testing.assert_close(attention(**options), per_token, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(estimate, probabilities.mean((0, 1)), rtol=1e-3)


def test_projecting_the_encoder_features_gives_the_embeddings_back():
    (signals,) = captured(MODEL, qwen_inputs([PROMPT], [smooth_image(131, 170)]))
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings)
    mixed = signals.hidden[:6].view(2, 3, -1).mean(1)  # what a merging method projects
    assert signals.project(mixed).shape == (2, 32)


def test_several_images_have_the_signals_they_have_alone():
    images = [smooth_image(131, 170, 1), smooth_image(60, 200, 2), smooth_image(90, 90, 3)]
    together = captured(MODEL, qwen_inputs([PROMPT, f"{{image}}and{PROMPT}"], images))
    for signals, own in zip(together, images, strict=True):
        (alone,) = captured(MODEL, qwen_inputs([PROMPT], [own]))
        assert signals.grid == alone.grid
        for name in ("attention", "keys", "hidden", "embeddings"):
            torch.testing.assert_close(getattr(signals, name), getattr(alone, name), atol=1e-5, rtol=1e-4)


def test_full_size_geometry_is_1296_tokens_of_5184_patches():
    model = qwen(layers=1, vision={"depth": 1, "fullatt_block_indexes": [0], "window_size": 112})
    inputs = qwen_inputs([PROMPT], [smooth_image(1008, 1008)])
    assert inputs.image_grid_thw.tolist() == [[1, 72, 72]]
    (signals,) = captured(model, inputs)
    assert signals.grid.views == ((36, 36),)
    assert signals.attention.shape == (1, 1, 1296) and signals.keys.shape == (1296, 32)
    torch.testing.assert_close(signals.attention.sum(), torch.tensor(1.0))


def test_rotary_axes_are_those_of_the_models_own_frequencies():
    """Moving one position component must turn exactly the frequencies of its axis, in both halves of a head."""
    rotary, axes = MODEL.model.language_model.rotary_emb, rotary_axes(MODEL.model.language_model).of_frequencies
    still = torch.zeros(3, 1, 1)
    for axis in range(3):
        moved = still.clone()
        moved[axis] = 1.0
        turned = (rotary(torch.zeros(1), moved)[0] != rotary(torch.zeros(1), still)[0])[0, 0]
        assert turned.tolist() == [own == axis for own in axes] * 2


@pytest.mark.parametrize("strategy", ["fixed", "pro"])
def test_kept_tokens_and_text_keep_their_uncompressed_positions(strategy):
    inputs = qwen_inputs([PROMPT], [smooth_image(131, 170)])
    native, _ = MODEL.model.get_rope_index(**{name: inputs[name] for name in ("input_ids", "mm_token_type_ids")},
                                           image_grid_thw=inputs.image_grid_thw)  # fmt: skip
    native = native[:, 0].T  # [n, 3]
    is_image = inputs.input_ids[0] == MODEL.config.image_token_id
    with covist.compress(MODEL, qwen_processor(), budget=8, strategy=strategy) as handle:
        output = MODEL.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True, do_sample=False)
    for stage in handle.report.images[0].stages:
        assert torch.equal(stage.positions, native[is_image][stage.indices])
    for ledger in ledgers(output.past_key_values):
        positions, visual = ledger.keys.positions[0], ledger.keys.visual[0]
        text = native[~is_image]
        generated = native.max() + torch.tensor([[1] * 3, [2] * 3])  # the last token is not fed back
        assert torch.equal(positions[~visual], torch.cat([text, generated]))


def test_rope_deltas_are_those_of_the_plain_model():
    inputs = qwen_inputs([PROMPT, f"this is{PROMPT}"], [smooth_image(131, 170), smooth_image(60, 200, 2)])
    MODEL.generate(**inputs, max_new_tokens=2, do_sample=False)
    plain = MODEL.model.rope_deltas.clone()
    with covist.compress(MODEL, qwen_processor(), budget=8):
        MODEL.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert torch.equal(MODEL.model.rope_deltas, plain) and (plain != 0).all()
