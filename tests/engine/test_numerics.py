"""Weights in other precisions, other wrappers and other places."""

import copy

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from peft import LoraConfig, get_peft_model
from support.ledgers import ledgers
from support.llava import HEADS, TOKENS, ask, build_llava
from support.requests import assert_same, greedy
from torch import nn

from covist.api.handle import Compression
from covist.engine.decoder import FrozenDecoder
from covist.engine.projections import row_norms
from covist.methods.create import create_method

PROMPT = "USER: <image> what color is this ? ASSISTANT:"
RANGE = (0.6, 1.4)


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def half(request):
    return build_llava(kv_heads=2).to(request.param)


def in_dtype(inputs, model):
    return {**inputs, "pixel_values": inputs["pixel_values"].to(model.dtype)}


def test_dtype_is_unchanged_and_arithmetic_is_float32(half, strategy, compress):
    handle = compress(half, budget=24, strategy=strategy)
    output = half(**in_dtype(ask(PROMPT), half), use_cache=True)
    assert output.logits.dtype == half.dtype and output.logits.isfinite().all()
    for layer, ledger in zip(output.past_key_values.layers, ledgers(output.past_key_values), strict=True):
        assert layer.keys.dtype == half.dtype and ledger.keys.log_weight.dtype == torch.float32
    for stage in handle.report.images[0].stages:
        assert stage.weights.dtype == torch.float32
        assert all(values.dtype == torch.float32 for values in stage.maps.values())
    assert handle.report.kv_bytes == sum(
        layer.keys.nbytes + layer.values.nbytes for layer in output.past_key_values.layers
    )


def test_half_precision_with_all_tokens_is_the_plain_model(half, strategy, compress):
    inputs = in_dtype(ask(PROMPT), half)
    plain = greedy(half, inputs, 3)
    compress(half, budget=TOKENS, strategy=strategy)
    assert_same(greedy(half, inputs, 3), plain, 0)


def both_precisions(half, compress, **options):
    """Report and last logits of the same weights in half precision and in float32."""
    for model in (half, copy.deepcopy(half).float()):
        handle = compress(model, budget=24, instruction="", **options)
        logits = model(**in_dtype(ask(PROMPT), model)).logits[0, -1].float()
        yield handle.report.images[0].stages[0], logits


def test_half_precision_is_close_to_float32(half, compress):
    """With a selection that no rounding can change; composition and attention are those of the method."""
    (first, ours), (second, expected) = both_precisions(half, compress, method=create_method("uniform+csc+sca"))
    assert first.indices.tolist() == second.indices.tolist()
    assert torch.cosine_similarity(ours, expected, dim=0) > 0.99


def test_half_precision_selects_mostly_the_same_tokens(half, compress):
    """Near-ties may go either way on another machine; by chance 4 of the 24 would agree."""
    (first, _), (second, _) = both_precisions(half, compress)
    assert len(set(first.indices.tolist()) & set(second.indices.tolist())) >= 16


# -- places ------------------------------------------------------------------------------------------------------------


def device_map():
    """Everything on the CPU except the later decoder layers and the head, which wait on the disk."""
    parts = ["vision_tower", "multi_modal_projector", *(f"language_model.{n}" for n in ("embed_tokens", "rotary_emb"))]
    places = {f"model.{part}": "cpu" for part in parts}
    places |= {f"model.language_model.layers.{n}": "cpu" if n < 3 else "disk" for n in range(8)}
    return {**places, "model.language_model.norm": "cpu", "lm_head": "disk"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("how", ["dispatched to cpu and disk", "offloaded"])
def test_offloaded_layers_give_the_same_result(grouped_query, strategy, compress, tmp_path, how, dtype):
    model = copy.deepcopy(grouped_query).to(dtype)
    inputs = in_dtype(ask(PROMPT), model)
    gains = FrozenDecoder(model.model.language_model).head_gains(RANGE)
    handle = compress(model, budget=24, strategy=strategy)
    expected = greedy(model, inputs, 3)
    handle.remove()
    if how == "offloaded":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        model = dispatch_model(model, device_map(), main_device="cpu", offload_dir=tmp_path, force_hooks=True)
    assert model.model.language_model.layers[5].self_attn.q_proj.weight.is_meta
    # Not one digit may differ: in half precision it would grow to several percent of a logit.
    assert torch.equal(FrozenDecoder(model.model.language_model).head_gains(RANGE), gains)
    compress(model, budget=24, strategy=strategy)
    assert_same(greedy(model, inputs, 3), expected, 8 * torch.finfo(dtype).eps)


# -- wrappers ----------------------------------------------------------------------------------------------------------


def plain_norms(projection):
    return projection.weight.detach().float().norm(dim=1)


class Quantised(nn.Module):
    """A projection in eight bits: no floating-point weight to read, and a bias that must not count."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        step = linear.weight.abs().amax() / 127
        self.register_buffer("codes", (linear.weight / step).round().to(torch.int8))
        self.register_buffer("step", step)
        self.register_buffer("bias", torch.linspace(-1, 1, linear.out_features))

    def forward(self, states):
        return nn.functional.linear(states, self.codes.to(states.dtype) * self.step.to(states.dtype), self.bias)


def test_row_norms_of_wrapped_projections():
    torch.manual_seed(0)
    linear = nn.Linear(700, 12)  # wider than a chunk of the probe
    expected = plain_norms(linear)
    torch.testing.assert_close(row_norms(linear, 700), expected)
    wrapped = nn.Sequential(linear)  # not a plain linear layer: asked instead of read, and its bias taken off
    torch.testing.assert_close(row_norms(wrapped, 700), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(row_norms(Quantised(linear), 700), expected, atol=5e-3, rtol=2e-2)


def test_quantised_projections_yield_head_gains(grouped_query, strategy, compress):
    model = copy.deepcopy(grouped_query)
    expected = FrozenDecoder(model.model.language_model).head_gains(RANGE)
    for layer in model.model.language_model.layers:
        layer.self_attn.q_proj = Quantised(layer.self_attn.q_proj)
        layer.self_attn.k_proj = Quantised(layer.self_attn.k_proj)
    gains = FrozenDecoder(model.model.language_model).head_gains(RANGE)
    assert gains.shape == (8, HEADS)
    torch.testing.assert_close(gains, expected, atol=0.05, rtol=0)
    compress(model, budget=24, strategy=strategy)
    assert greedy(model, ask(PROMPT), 2).sequences.shape[1] == ask(PROMPT)["input_ids"].shape[1] + 2


@pytest.fixture
def adapted(grouped_query):
    torch.manual_seed(7)
    config = LoraConfig(r=4, target_modules=r".*language_model.*(q_proj|k_proj|v_proj)", init_lora_weights=False)
    return get_peft_model(copy.deepcopy(grouped_query), config).eval()


def test_lora_gains_are_those_of_the_merged_weights(adapted, grouped_query):
    gains = FrozenDecoder(adapted.base_model.model.model.language_model).head_gains(RANGE)
    merged = copy.deepcopy(adapted).merge_and_unload()
    expected = FrozenDecoder(merged.model.language_model).head_gains(RANGE)
    torch.testing.assert_close(gains, expected, atol=1e-4, rtol=1e-4)
    without = FrozenDecoder(grouped_query.model.language_model).head_gains(RANGE)
    assert (gains - without).abs().max() > 1e-2


def test_lora_wrapped_model_answers_like_the_merged_one(adapted, strategy, compress):
    merged = copy.deepcopy(adapted).merge_and_unload()
    compress(merged, budget=24, strategy=strategy)
    expected = greedy(merged, ask(PROMPT), 3)
    handle = compress(adapted, budget=24, strategy=strategy)
    assert_same(greedy(adapted, ask(PROMPT), 3), expected, 1e-3)
    assert Compression.of(adapted) is handle
