"""Wide heads in any decoder: its attention layers are built again in place, with more dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType

from covist.errors import CovistError
from covist.vllm.attention import StepColumns, WideForward
from covist.vllm.settings import COST, WITHOUT_WEIGHTS

Arguments = dict[str, Any]


class WideAttention(WideForward, Attention):
    """vLLM's attention layer with wide heads."""


@contextmanager
def recorded_arguments() -> Iterator[dict[int, Arguments]]:
    """Arguments of the attention layers that are built meanwhile, by the layer's identity.

    A layer does not keep them all (sinks, soft caps, shared caches), and every decoder builds its layers itself.
    """
    made: dict[int, Arguments] = {}
    build: Callable[..., None] = Attention.__init__
    names = signature(build)

    @wraps(build)
    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        given = names.bind(self, *args, **kwargs).arguments
        extra = given.pop("extra_impl_args", {})
        given.pop("self")
        made[id(self)] = {**given, **extra}
        build(self, *args, **kwargs)

    Attention.__init__ = record
    try:
        yield made
    finally:
        Attention.__init__ = build


def biasable_layers(vllm_config: VllmConfig) -> list[Attention]:
    """The decoder's attention layers in order; refused if one of them cannot carry a bias."""
    found = []
    for layer in vllm_config.compilation_config.static_forward_context.values():
        if type(layer) is Attention and layer.attn_type == AttentionType.DECODER:
            if getattr(layer.impl, "logits_soft_cap", None):
                raise CovistError(_refusal("attention with soft-capped logits, which would cap the bias too,"))
            found.append(layer)
        elif isinstance(layer, Attention) or type(layer).__name__.startswith("MLA"):
            raise CovistError(_refusal(type(layer).__name__))
    if not found:
        raise CovistError(_refusal("this model, which has none of vLLM's attention layers,"))
    return found


def _refusal(what: str) -> str:
    return f"vLLM: {what} cannot carry a bias; use {WITHOUT_WEIGHTS}, which leaves out the weights, {COST}"


def widen_layer(layer: Any, arguments: Arguments, step: StepColumns, vllm_config: VllmConfig) -> None:
    """Build a layer again in place: whatever refers to it and whatever it was given stay."""
    # by this name, caches are bound and kernels are called
    del vllm_config.compilation_config.static_forward_context[layer.layer_name]
    layer.__class__ = WideAttention
    layer.__init__(**{**arguments, "head_size": arguments["head_size"] + step.codec.columns})
    layer.step, layer.scaling = step, arguments["scale"]
    # of this rank's heads; gains are known once the weights are loaded
    scale = torch.ones(layer.num_heads, dtype=torch.float32, device=step.queries.device)
    layer.register_buffer("scale", scale, persistent=False)
