"""InternVL: small models of the real class over Qwen2 and Qwen3, the real processor, and the slow reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import InternVLConfig, InternVLForConditionalGeneration, InternVLProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.internvl import modeling_internvl

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer, vocabulary
from support.slow_llava import SlowLlava, affinity
from support.towers import eager_attention, runs, tokens_of_patches

TILE, PATCH, SIDE = 56, 7, 4  # 8 x 8 patches are 4 x 4 tokens
SPECIAL = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}


def internvl(
    text_type: str = "qwen2",
    layers: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    vision: dict[str, Any] | None = None,
    **text: Any,
) -> Any:
    """A tower of three blocks under a decoder of either kind; that of Qwen3 has heads of 16 and norms."""
    config = InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "attention_bias": True,
            "image_size": TILE,
            "patch_size": PATCH,
            "layer_scale_init_value": 0.7,
            **(vision or {}),
        },
        text_config={
            "model_type": text_type,
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            **text,
        },
        image_token_id=vocabulary(*SPECIAL.values())["<IMG_CONTEXT>"],
        image_seq_length=SIDE * SIDE,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    return _with_places_and_norms(lively(InternVLForConditionalGeneration(config).eval()))


@torch.no_grad()
def _with_places_and_norms(model: Any) -> Any:
    """Random values for what the class initialises to zeros and ones: class token, places, weights of norms."""
    for name, parameter in model.named_parameters():
        if name.endswith(("cls_token", "position_embeddings")):
            parameter.normal_(std=0.5)
        elif "q_norm" in name or "k_norm" in name:
            parameter.uniform_(-1.5, 1.5)
    return model


def internvl_processor(**options: Any) -> Any:
    images = GotOcr2ImageProcessorPil(size={"height": TILE, "width": TILE}, **{"max_patches": 6, **options})
    extra = {**SPECIAL, "video_token": "<|video_pad|>"}
    words = tokenizer(*SPECIAL.values(), extra_special_tokens=extra)
    return image_only(InternVLProcessor)(images, words, image_seq_length=SIDE * SIDE)


class SlowInternVL(SlowLlava):
    """Tiles are counted by the runs of the prompt; keys are those that the tower's own attention receives."""

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        base = self.model.model
        with eager_attention(modeling_internvl, base.vision_tower) as seen:
            spans = base.get_image_features(shown.pixel_values, return_dict=True).pooler_output
        keys = tokens_of_patches(seen[-1].keys[:, 1:], fold=2)  # [tiles, T, k]
        encoded, first = [], 0
        for run in runs(shown.input_ids[0].tolist(), self.model.config.image_token_id):
            own = slice(first, first + run // SIDE**2)
            span, content = spans[own].flatten(0, 1), torch.ones(run, dtype=torch.bool)
            encoded.append((span, content, affinity(keys[own].flatten(0, 1), span)))
            first = own.stop
        return encoded

    def rows(self, block: Any, kind: str, heads: int) -> np.ndarray:
        rows, norm = super().rows(block, kind, heads), getattr(block, f"{kind}_norm", None)
        return rows if norm is None else norm.weight.detach().double().numpy()[:, None] * rows

    def _layer(self, layer: Any, hidden: Tensor, angles: np.ndarray, bias: Tensor) -> Tensor:
        both = torch.from_numpy(np.concatenate([angles, angles], axis=-1))[None]
        rotary = both.cos().float(), both.sin().float()
        return layer(hidden[None], attention_mask=bias[None], position_embeddings=rotary)[0]


def case(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="internvl",
        model_class="InternVLForConditionalGeneration",
        build=partial(internvl, layers=8, **options),
        processor=internvl_processor,
        image="<IMG_CONTEXT>",
        turn="<|im_start|>user{}<|im_end|><|im_start|>assistant",
        slow=SlowInternVL,
    )


NORMED_TOWER = {"use_qk_norm": True, "norm_type": "rms_norm", "attention_bias": False}
CASES = (
    case("internvl over qwen2"),
    case("internvl over qwen3", text_type="qwen3", head_dim=16, kv_heads=4, vision=NORMED_TOWER, seed=3),
)
