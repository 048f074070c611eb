"""Models of a published geometry with random weights, narrowed by a scale: for timing, where answers do not matter.

Depth, token counts, patch sizes and head widths stay those of the original, so that schedules, reductions and the
shape of the attention are the real ones; `scale` shrinks the number of heads and the feed-forward widths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)

from covist.errors import CovistError
from covist.families.text_tower import TextTower
from covist.plan import Geometry, geometry_named
from covist.tiny.text import build_caption_tokenizer

VOCABULARY = 1024
IMAGE_TOKEN, VISION_START, VISION_END, VIDEO_TOKEN = 1000, 1001, 1002, 1003
CLIP_SIDE, CLIP_PATCH = 336, 14
NEXT_SIDE = 2 * CLIP_SIDE
QWEN_SIDE, QWEN_PATCH, QWEN_MERGE = 1008, 14, 2


@dataclass(frozen=True)
class RandomModel:
    """A model without training, a maker of requests for it, and its text tower if its family has one."""

    model: Any
    geometry: Geometry
    clip: TextTower | None
    request: Callable[[int, int], dict[str, Tensor]]
    """`request(seed, text)`: random pixels inside `text` random tokens."""


def build_random(
    name: str,
    scale: float = 0.1,
    seed: int = 0,
    *,
    decoder: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> RandomModel:
    """A random model of the geometry `name`; `decoder` and `vision` override fields of its two configurations."""
    if not 0 < scale <= 1:
        raise CovistError(f"scale must be in (0, 1], got {scale:g}")
    geometry = geometry_named(name)
    torch.manual_seed(seed)
    build = _qwen if name.startswith("qwen") else _llava_next if name.startswith("llava-next") else _llava
    random = build(geometry, scale, dict(decoder or {}), dict(vision or {}))
    # Stopping by chance would give every method another number of tokens to write.
    random.model.generation_config.eos_token_id = None
    random.model.eval()
    return random


def _heads(count: int, scale: float, multiple: int = 1) -> int:
    return max(1, round(count * scale / multiple)) * multiple


def _llama(geometry: Geometry, scale: float, changes: dict[str, Any]) -> dict[str, Any]:
    kv_heads = _heads(geometry.kv_heads, scale)
    heads = _heads(geometry.heads, scale, kv_heads)
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * geometry.head_width,
        "intermediate_size": round(geometry.intermediate * scale),
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **changes,
    }


def _clip_vision(scale: float, changes: dict[str, Any]) -> CLIPVisionConfig:
    """CLIP ViT-L/14 at 336 pixels."""
    heads = _heads(16, scale)
    return CLIPVisionConfig(
        **{
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
            "num_hidden_layers": 24,
            "num_attention_heads": heads,
            "image_size": CLIP_SIDE,
            "patch_size": CLIP_PATCH,
            "projection_dim": 48 * heads,
            **changes,
        }
    )


def _text_tower(vision: CLIPVisionConfig) -> TextTower:
    """A text tower that shares the projection width of the vision tower, reading the embedded model's words."""
    tokenizer = build_caption_tokenizer()
    text = CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=vision.projection_dim,
            intermediate_size=4 * vision.projection_dim,
            num_hidden_layers=12,
            num_attention_heads=vision.projection_dim // 16,
            projection_dim=vision.projection_dim,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).eval()
    projection = nn.Linear(vision.hidden_size, vision.projection_dim, bias=False)
    return TextTower(text.text_model, text.text_projection, projection, tokenizer)


def _llava(geometry: Geometry, scale: float, decoder: dict[str, Any], vision: dict[str, Any]) -> RandomModel:
    tower = _clip_vision(scale, vision)
    config = LlavaConfig(
        vision_config=tower, text_config=LlamaConfig(**_llama(geometry, scale, decoder)), image_token_index=IMAGE_TOKEN
    )

    def request(seed: int, text: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randn(1, 3, CLIP_SIDE, CLIP_SIDE, generator=random)
        return {**_prompt([IMAGE_TOKEN] * geometry.tokens, text, random), "pixel_values": pixels}

    return RandomModel(LlavaForConditionalGeneration(config), geometry, _text_tower(tower), request)


def _llava_next(geometry: Geometry, scale: float, decoder: dict[str, Any], vision: dict[str, Any]) -> RandomModel:
    tower = _clip_vision(scale, vision)
    config = LlavaNextConfig(
        vision_config=tower,
        text_config=LlamaConfig(**_llama(geometry, scale, decoder)),
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=[[NEXT_SIDE, NEXT_SIDE]],
    )

    def request(seed: int, text: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed)
        return {
            **_prompt([IMAGE_TOKEN] * (geometry.tokens + geometry.newlines), text, random),
            "pixel_values": torch.randn(1, 5, 3, CLIP_SIDE, CLIP_SIDE, generator=random),
            "image_sizes": torch.tensor([[NEXT_SIDE, NEXT_SIDE]]),
        }

    return RandomModel(LlavaNextForConditionalGeneration(config), geometry, _text_tower(tower), request)


def _qwen(geometry: Geometry, scale: float, decoder: dict[str, Any], vision: dict[str, Any]) -> RandomModel:
    text_config = _llama(geometry, scale, decoder)
    heads = _heads(16, scale)
    tower = {
        "depth": 32,
        "hidden_size": 80 * heads,
        "intermediate_size": round(3420 * scale),
        "num_heads": heads,
        "out_hidden_size": text_config["hidden_size"],
        "patch_size": QWEN_PATCH,
        "spatial_merge_size": QWEN_MERGE,
        **vision,
    }
    config = Qwen2_5_VLConfig(
        vision_config=tower,
        text_config={
            **text_config,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
        },
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    side = QWEN_SIDE // QWEN_PATCH

    def request(seed: int, text: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(seed)
        prompt = _prompt([VISION_START, *[IMAGE_TOKEN] * geometry.tokens, VISION_END], text, random)
        return {
            **prompt,
            "mm_token_type_ids": (prompt["input_ids"] == IMAGE_TOKEN).int(),
            "pixel_values": torch.randn(side * side, 3 * 2 * QWEN_PATCH**2, generator=random),
            "image_grid_thw": torch.tensor([[1, side, side]]),
        }

    return RandomModel(Qwen2_5_VLForConditionalGeneration(config), geometry, None, request)


def _prompt(image: list[int], text: int, random: torch.Generator) -> dict[str, Tensor]:
    """A few tokens before the image, the rest of `text` after it."""
    words = torch.randint(3, IMAGE_TOKEN, (max(text, 2),), generator=random).tolist()
    before = min(5, len(words) - 1)
    ids = torch.tensor([[*words[:before], *image, *words[before:]]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
