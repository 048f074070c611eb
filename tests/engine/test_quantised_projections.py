"""Projections without parameters, with tensors of another kind, and norms that change: the gains follow what runs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.llava import ask
from support.requests import assert_same, greedy
from support.text_models import readable
from torch import Tensor, nn

PROMPT = "USER: <image> what color is this ? ASSISTANT:"


class Packed(nn.Module):
    """A linear layer as GPTQ and AWQ have it: integers and scales in buffers, no parameter."""

    def __init__(self, linear: nn.Linear, scale_dtype: torch.dtype):
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("qweight", (linear.weight / scale).round().to(torch.int8))
        self.register_buffer("scales", scale.to(scale_dtype))

    @property
    def dequantised(self) -> Tensor:
        return self.qweight.to(self.scales.dtype) * self.scales

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.dequantised)


class TableOnly(Packed):
    """Codes that index a table: the only floating-point buffer is not of the states' precision."""

    def __init__(self, linear: nn.Linear, scale_dtype: torch.dtype):
        super().__init__(linear, scale_dtype)
        self.scales = self.scales.double()
        self.states_dtype = linear.weight.dtype

    @property
    def dequantised(self) -> Tensor:
        return (self.qweight.double() * self.scales).to(self.states_dtype)


class FewOperators(Tensor):
    """A weight as torchao has it: a tensor subclass that knows how to be multiplied and nothing else."""

    @staticmethod
    def __new__(cls, inside):
        return Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype, device=inside.device)

    def __init__(self, inside):
        self.inside = inside

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            states, weight, bias = (*args, None)[:3]
            return F.linear(states, weight.inside, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.detach, torch.ops.aten.alias):
            return cls(args[0].inside)
        raise NotImplementedError(f"{cls.__name__} does not implement {function}")


def replaced(model, make):
    """A copy whose decoder projections were made anew."""
    model = copy.deepcopy(model)
    for layer in model.model.language_model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, make(getattr(layer.self_attn, name)))
    return model


def as_linear(packed: Packed) -> nn.Linear:
    linear = nn.Linear(packed.qweight.shape[1], packed.qweight.shape[0], bias=False)
    linear.weight = nn.Parameter(packed.dequantised)
    return linear


def answer(model, compress, strategy):
    handle = compress(model, budget=24, strategy=strategy)
    output = greedy(model, ask(PROMPT), 3)
    kept = [stage.kept.tolist() for stage in handle.report.images[0].stages]
    handle.remove()
    return output, kept


@pytest.mark.parametrize("kind", [Packed, TableOnly])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_projections_with_buffers_only(grouped_query, compress, strategy, kind, dtype):
    packed = replaced(copy.deepcopy(grouped_query).to(dtype), lambda linear: kind(linear, dtype))
    plain = replaced(packed, as_linear)
    assert_same(greedy(packed, ask(PROMPT), 2), greedy(plain, ask(PROMPT), 2), 0)
    found, kept = answer(packed, compress, strategy)
    expected, expected_kept = answer(plain, compress, strategy)
    assert kept == expected_kept
    # a probed norm is summed in another order than one that is read
    assert_same(found, expected, 1e-4 if dtype == torch.float32 else 0.1)


def test_weights_that_are_tensors_of_another_kind(grouped_query, compress, strategy):
    def wrapped(linear):
        linear = copy.deepcopy(linear)
        linear.weight = nn.Parameter(FewOperators(linear.weight.detach()), requires_grad=False)
        return linear

    model = copy.deepcopy(grouped_query)
    for layer in model.model.language_model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, wrapped(getattr(layer.self_attn, name)))
    assert_same(greedy(model, ask(PROMPT), 2), greedy(grouped_query, ask(PROMPT), 2), 0)
    found, kept = answer(model, compress, strategy)
    expected, expected_kept = answer(grouped_query, compress, strategy)
    assert kept == expected_kept
    assert_same(found, expected, 1e-4)


def test_changed_buffers_are_noticed(grouped_query, compress, strategy):
    model = replaced(grouped_query, lambda linear: Packed(linear, torch.float32))
    handle = compress(model, budget=24, strategy=strategy)
    greedy(model, ask(PROMPT), 1)
    for layer in model.model.language_model.layers[::2]:
        layer.self_attn.q_proj.scales[::3] *= 4
    found = greedy(model, ask(PROMPT), 3)
    handle.remove()
    assert_same(found, answer(model, compress, strategy)[0], 1e-6)


# -- norms of queries and keys ----------------------------------------------------------------------------------------

NORMED = [
    "qwen3: norm per head",
    "cohere: norm with a weight per head",
    "olmo2: full-width norm, none before attention",
    "hunyuan: norm after rotation",
]


def norms(model):
    for layer in model.model.language_model.layers[::2]:
        for name, module in layer.self_attn.named_children():
            if "norm" in name:
                yield module


@pytest.mark.parametrize("name", NORMED)
def test_changed_norms_are_noticed(compress, strategy, name):
    model = copy.deepcopy(readable(name))
    handle = compress(model, budget=24, strategy=strategy)
    before = greedy(model, ask(PROMPT), 3)
    changed = 0
    for norm in norms(model):
        norm.weight[..., ::3] *= 5
        changed += 1
    assert changed
    found = greedy(model, ask(PROMPT), 3)
    handle.remove()
    expected, _ = answer(model, compress, strategy)
    assert not torch.equal(expected.logits[0], before.logits[0])
    assert_same(found, expected, 1e-6)


def test_replaced_norms_are_noticed(compress, strategy):
    model = copy.deepcopy(readable("qwen3: norm per head"))
    handle = compress(model, budget=24, strategy=strategy)
    greedy(model, ask(PROMPT), 1)
    for layer in model.model.language_model.layers[::2]:
        other = copy.deepcopy(layer.self_attn.q_norm)
        other.weight[::3] *= 5
        layer.self_attn.q_norm = other
    found = greedy(model, ask(PROMPT), 3)
    handle.remove()
    assert_same(found, answer(model, compress, strategy)[0], 1e-6)
