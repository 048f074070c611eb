"""What compression adds to a decoding step, counted in operators, so that the result is the same on any machine.

A `TorchDispatchMode` counts the operators of a step of the compressed model and of the plain model with a cache of the
same length, on random models of two depths. This gives the difference per layer and the constant rest. Views launch
nothing on an accelerator and are counted separately; host reads make the host wait for it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CLIPVisionConfig, DynamicCache, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

import covist

DEPTHS = (8, 16)
SIDE, BUDGET, TEXT = 12, 24, 20
TOKENS = SIDE * SIDE
VOCABULARY, IMAGE = 64, 63
HOST_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}
METHODS: dict[str, dict[str, Any]] = {
    "covist-fixed": {"strategy": "fixed"},
    "covist-pro": {"strategy": "pro"},
    "divprune": {"method": "divprune"},
}


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.views: Counter[str] = Counter()
        self.host_reads: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in HOST_READS:
            self.host_reads[name] += 1
        else:
            (self.views if func.is_view else self.launches)[name] += 1
        return func(*args, **(kwargs or {}))


def build(layers: int, dtype: torch.dtype = torch.float32) -> LlavaForConditionalGeneration:
    """A random LLaVA-1.5 with 144 tokens per image."""
    vision = CLIPVisionConfig(
        hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=48, patch_size=4
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4
    )
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=TOKENS)
    return LlavaForConditionalGeneration(config).eval().to(dtype)


def step_operators(model: Any, prompt: dict[str, torch.Tensor]) -> Operators:
    """Operators of the fourth decoding step after a prompt, called as in `generate`, with mask and positions."""
    cache = DynamicCache(config=model.config.text_config)
    model(**prompt, past_key_values=cache, use_cache=True)
    mask, length = prompt["attention_mask"], prompt["input_ids"].shape[1]
    for number in range(4):
        mask = torch.cat([mask, mask.new_ones(1, 1)], 1)
        given = {"input_ids": torch.tensor([[5]]), "position_ids": torch.tensor([[length + number]])}
        with Operators() as counted:
            model(**given, attention_mask=mask, past_key_values=cache, use_cache=True)
    return counted


@contextmanager
def compressed(model: Any, **options: Any) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handle = covist.compress(model, budget=BUDGET, **options)
    try:
        yield
    finally:
        handle.remove()


def prompts() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A prompt with an image, and a text prompt with as many tokens as the first has keys after compression."""
    torch.manual_seed(1)
    ids = torch.cat([torch.full((1, 3), 4), torch.full((1, TOKENS), IMAGE), torch.randint(1, 60, (1, TEXT))], 1)
    image = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(1, 3, 48, 48)}
    text = torch.randint(1, 60, (1, 3 + BUDGET + TEXT))
    return image, {"input_ids": text, "attention_mask": torch.ones_like(text)}


def added(count: Callable[[Operators], int], options: dict[str, Any], dtype: torch.dtype) -> tuple[float, float]:
    """(per layer, constant): the additional operators of a compressed step."""
    image, text = prompts()
    image["pixel_values"] = image["pixel_values"].to(dtype)
    differences = []
    for depth in DEPTHS:
        model = build(depth, dtype)
        plain = count(step_operators(model, text))
        with compressed(model, **options):
            differences.append(count(step_operators(model, image)) - plain)
    per_layer = (differences[1] - differences[0]) / (DEPTHS[1] - DEPTHS[0])
    return per_layer, differences[0] - per_layer * DEPTHS[0]


@torch.no_grad()
def added_to_a_step() -> Iterator[tuple[str, str, float, float, float]]:
    """(method, dtype, operators per layer, operators once per step, host reads once per step)."""
    for name, options in METHODS.items():
        for dtype in (torch.float32, torch.bfloat16):
            per_layer, constant = added(lambda seen: seen.launches.total(), options, dtype)
            reads = sum(added(lambda seen: seen.host_reads.total(), options, dtype))
            yield name, str(dtype).split(".")[1], per_layer, constant, reads
