"""Models whose towers see images, or tiles of them, as squares of one size."""

from __future__ import annotations

from itertools import product
from math import isqrt
from typing import Any

import torch
import transformers

from covist.bench.recipes.recipe import FIRST_SPECIAL, RandomImage, Recipe, layer_types, narrowed, siglip
from covist.plan import Geometry

CLIP_SIDE, CLIP_PATCH = 336, 14
"""Pixels along an image and along a patch of CLIP ViT-L/14."""
ONEVISION_TILE, GEMMA_SIDE = 384, 896


class Llava(Recipe):
    clip_text = True
    shallow = {"num_hidden_layers": 2}

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {
            "model_type": "clip_vision_model",
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
            "num_hidden_layers": 24,
            "num_attention_heads": heads,
            "image_size": CLIP_SIDE,
            "patch_size": CLIP_PATCH,
            "projection_dim": 48 * heads,
        }

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        text = {"model_type": "llama", **text}
        return transformers.LlavaConfig(vision_config=tower, text_config=text, image_token_index=FIRST_SPECIAL)

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        pixels = torch.randn(1, 3, CLIP_SIDE, CLIP_SIDE, generator=generator)
        return [config.image_token_id] * geometry.tokens, {"pixel_values": pixels}


class LlavaNext(Llava):
    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        return transformers.LlavaNextConfig(
            vision_config=tower,
            text_config={"model_type": "llama", **text},
            image_token_index=FIRST_SPECIAL,
            image_grid_pinpoints=[[2 * CLIP_SIDE, 2 * CLIP_SIDE]],
        )

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        side = config.vision_config.image_size
        return [config.image_token_id] * (geometry.tokens + geometry.markers), {
            "pixel_values": torch.randn(1, geometry.tiles, 3, side, side, generator=generator),
            "image_sizes": torch.tensor(config.image_grid_pinpoints),
        }


class LlavaNextVideo(LlavaNext):
    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        return transformers.LlavaNextVideoConfig(
            vision_config=tower,
            text_config={"model_type": "llama", **text},
            image_token_index=FIRST_SPECIAL,
            video_token_index=FIRST_SPECIAL + 1,
            image_grid_pinpoints=[[2 * CLIP_SIDE, 2 * CLIP_SIDE]],
        )


class LlavaOnevision(LlavaNext):
    clip_text = False
    shallow = {"num_hidden_layers": 1}

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        """Without its last layer."""
        return siglip(scale, layers=26, side=ONEVISION_TILE)

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        return transformers.LlavaOnevisionConfig(
            vision_config=tower,
            text_config={"model_type": "qwen2", **text},
            image_token_index=FIRST_SPECIAL,
            video_token_index=FIRST_SPECIAL + 1,
            image_grid_pinpoints=[[2 * ONEVISION_TILE, 2 * ONEVISION_TILE]],
        )


class Gemma3(Recipe):
    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        return siglip(scale, layers=27, side=GEMMA_SIDE)

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        windows = {layer.reach for layer in geometry.pattern if layer.reach}
        text = {
            "layer_types": layer_types(geometry, text),
            "sliding_window": max(windows),
            "query_pre_attn_scalar": text["head_dim"],
            **text,
        }
        return transformers.Gemma3Config(
            vision_config=tower,
            text_config=text,
            mm_tokens_per_image=geometry.tokens,
            image_token_index=FIRST_SPECIAL,
        )

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        pixels = torch.randn(1, 3, GEMMA_SIDE, GEMMA_SIDE, generator=generator)
        return [config.image_token_id] * geometry.tokens, {"pixel_values": pixels}


class InternVL(Recipe):
    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        """InternViT-300M."""
        heads = narrowed(16, scale)
        return {
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
            "num_hidden_layers": 24,
            "num_attention_heads": heads,
            "attention_bias": True,
            "image_size": 448,
            "patch_size": 14,
        }

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        text = {"model_type": "qwen3" if geometry.name.startswith("internvl3.5") else "qwen2", **text}
        return transformers.InternVLConfig(vision_config=tower, text_config=text, image_token_id=FIRST_SPECIAL)

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        pixels = torch.randn(geometry.tiles, 3, *config.vision_config.image_size, generator=generator)
        return [config.image_token_id] * geometry.tokens, {"pixel_values": pixels}


class Idefics3(Recipe):
    """Tiles with their places written before them."""

    sizes = {"idefics3-8b": (364, 14, 2), "smolvlm-2.2b": (384, 14, 3)}
    """Preset -> pixels along a tile, pixels along a patch, and patches along a token."""
    small = (512, 16, 4)
    written = (
        "<image>",
        "<fake_token_around_image>",
        "\n",
        "<global-img>",
        *(f"<row_{row}_col_{column}>" for row, column in product(range(1, 5), repeat=2)),
    )
    """Texts in prompts, with ids from FIRST_SPECIAL on."""

    def __init__(self, model_type: str):
        self.model_type = model_type

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        """SigLIP: base/16 under the small models, so400m/14 under the others."""
        side, patch, _ = self.sizes.get(geometry.name, self.small)
        layers, count, head, width = (12, 12, 64, 3072) if patch == 16 else (27, 16, 72, 4304)
        heads = narrowed(count, scale)
        return {
            "hidden_size": head * heads,
            "intermediate_size": round(width * scale),
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "image_size": side,
            "patch_size": patch,
        }

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        config_class: Any = transformers.CONFIG_MAPPING[self.model_type]
        return config_class(
            vision_config=tower,
            text_config={"model_type": "llama", **text},
            scale_factor=self.sizes.get(geometry.name, self.small)[2],
            image_token_id=FIRST_SPECIAL,
        )

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        image, fake, newline, whole, *marks = range(FIRST_SPECIAL, FIRST_SPECIAL + len(self.written))
        run, columns = [image] * (geometry.tokens // geometry.tiles), isqrt(geometry.tiles)
        ids: list[int] = []
        for number, mark in enumerate(marks, start=1):
            ids += [fake, mark, *run, *([] if number % columns else [newline])]
        side = config.vision_config.image_size
        pixels = torch.randn(1, geometry.tiles, 3, side, side, generator=generator)
        return [*ids, fake, whole, *run, fake], {"pixel_values": pixels}

    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer, models

        words = (*(f"word{number}" for number in range(FIRST_SPECIAL)), *self.written)
        vocabulary = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="word0")
        return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(vocabulary))
