"""LLaVA-NeXT: small models of the real class with the real processor, and the slow reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from support.case import Case
from support.families import VOCABULARY, lively, tokenizer
from support.slow_llava import SlowLlava, affinity

TILE, PATCH = 56, 14  # tiles of 4 x 4 patches
PINPOINTS = [[56, 112], [112, 56], [112, 112], [56, 168], [168, 56]]


def llava_next(layers: int = 4, kv_heads: int = 4, seed: int = 0, **text: Any) -> LlavaNextForConditionalGeneration:
    """4 x 4 patches per tile, multi-head or grouped-query."""
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=TILE,
        patch_size=PATCH,
    )
    decoder = LlamaConfig(
        **{
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        }
    )
    config = LlavaNextConfig(
        vision_config=vision,
        text_config=decoder,
        image_token_index=VOCABULARY["<image>"],
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-2,
    )
    torch.manual_seed(seed)
    return lively(LlavaNextForConditionalGeneration(config).eval())


def llava_next_processor() -> LlavaNextProcessor:
    return LlavaNextProcessor(
        LlavaNextImageProcessorPil(
            size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE}, image_grid_pinpoints=PINPOINTS
        ),
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


class SlowLlavaNext(SlowLlava):
    """Pictures are the processor's output; the layout is written out row by row from the image size."""

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        base = self.model.model
        spans = base.get_image_features(shown.pixel_values, shown.image_sizes, return_dict=True).pooler_output
        encoded = []
        for pixels, span in zip(shown.pixel_values, spans, strict=True):
            outputs = base.vision_tower(pixels, output_hidden_states=True).hidden_states
            block = base.vision_tower.encoder.layers[-2]
            keys = block.self_attn.k_proj(block.layer_norm1(outputs[-3]))[:, 1:].flatten(0, 1)
            embeddings = base.multi_modal_projector(outputs[-2][:, 1:]).flatten(0, 1)
            content = ~(span == base.image_newline).all(-1)
            # Every content token is found among the patches by its embedding.
            sources = torch.cdist(span[content], embeddings).argmin(-1)
            encoded.append((span, content, affinity(keys[sources], span[content])))
        return encoded


def newlines(model: Any, inputs: Any) -> int:
    spans = model.model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output
    return sum(int((span == model.model.image_newline).all(-1).sum()) for span in spans)


def case(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="llava-next",
        model_class="LlavaNextForConditionalGeneration",
        build=partial(llava_next, layers=8, **options),
        processor=llava_next_processor,
        image="<image>",
        turn="USER: {} ASSISTANT:",
        slow=SlowLlavaNext,
        markers=newlines,
    )


CASES = (case("llava-next multi-head"), case("llava-next grouped-query", kv_heads=2, seed=3))


def llava_next_inputs(prompts: list[str], images: list[Any]) -> Any:
    return CASES[0].encode(prompts, images)
