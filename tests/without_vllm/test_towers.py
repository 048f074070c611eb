"""Signals of Qwen's towers as vLLM runs them, against those of the same weights in transformers."""

from types import SimpleNamespace

import pytest
import torch
from support.captures import captured
from support.families import smooth_image
from support.matrix.qwen2_5_vl import qwen, qwen_inputs
from support.matrix.qwen3_vl import qwen3_vl, qwen3_vl_inputs

from covist.contract.encoder import EncoderRead
from covist.vllm.towers import ServedQwen3VL, ServedQwen25VL

SIZES = [(131, 170), (170, 131), (131, 170)]  # two images are the same
PROMPT = "USER: <|vision_start|><|image_pad|><|vision_end|> what is this ?"
READS = (EncoderRead("received", 0.5), EncoderRead("states", 0.5))


@pytest.mark.parametrize(
    ("served", "build", "inputs_of"), [(ServedQwen25VL, qwen, qwen_inputs), (ServedQwen3VL, qwen3_vl, qwen3_vl_inputs)]
)
def test_signals_read_from_towers_match_transformers(served, build, inputs_of):
    model = build()
    inputs = inputs_of([PROMPT] * len(SIZES), [smooth_image(*size) for size in SIZES])
    expected = captured(model, inputs, READS)
    visual, arguments = model.model.visual, {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    text = SimpleNamespace(model=model.model.language_model)
    family = served(SimpleNamespace(visual=visual, config=model.config, language_model=text))
    family.gather = lambda part: part
    family.watch(READS)
    as_in_vllm(visual)
    with torch.no_grad():
        output = model.model.get_image_features(**arguments)
    levels = getattr(output, "deepstack_features", None) or []
    spans = [torch.cat(parts, -1) for parts in zip(output.pooler_output, *levels, strict=True)]
    for ours, theirs in zip(family.read(arguments, spans), expected, strict=True):
        assert torch.equal(ours.span, theirs.span) and ours.grid == theirs.grid
        torch.testing.assert_close(ours.attention, theirs.attention, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.hidden, theirs.hidden)
        torch.testing.assert_close(ours.project(ours.hidden), ours.span, atol=1e-5, rtol=1e-4)
        assert sorted(ours.companions) == sorted(theirs.companions)
        for layer, features in theirs.companions.items():
            assert torch.equal(ours.companions[layer], features)
        for read in READS:
            for one, other in zip(ours.read(read), theirs.read(read), strict=True):
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def as_in_vllm(visual):
    """vLLM passes the halves of cos and sin by other names, and its projections have an axis of one entry."""
    for block in visual.blocks:
        for hooks, changed in ((block.attn._forward_pre_hooks, renamed), (block.attn.qkv._forward_hooks, with_axis)):
            hooks.update((name, changed(hook.__self__)) for name, hook in list(hooks.items()))


def renamed(tap):
    def keep(module, args, kwargs):
        cos, sin = kwargs["position_embeddings"]
        half = cos.shape[-1] // 2
        tap._keep_rotary(module, args, {"rotary_pos_emb_cos": cos[:, :half], "rotary_pos_emb_sin": sin[:, :half]})

    return keep


def with_axis(tap):
    return lambda module, inputs, output: tap._keep_projections(module, inputs, output[:, None])
