"""Models whose towers see images of any size: those of Qwen and of Pixtral."""

from __future__ import annotations

from math import isqrt
from typing import Any, ClassVar

import torch
import transformers

from covist.bench.recipes.recipe import FIRST_SPECIAL, RandomImage, Recipe, layer_types, narrowed
from covist.plan import Geometry

PLACEHOLDERS: dict[str, Any] = {
    "image_token_id": FIRST_SPECIAL,
    "video_token_id": FIRST_SPECIAL + 1,
    "vision_start_token_id": FIRST_SPECIAL + 2,
    "vision_end_token_id": FIRST_SPECIAL + 3,
}
IMAGE, ROW_BREAK, IMAGE_END = range(FIRST_SPECIAL, FIRST_SPECIAL + 3)
"""Ids of the tokens of an image of Pixtral."""


class QwenVL(Recipe):
    """Patches of 14 or 16 pixels, 2 x 2 of which make a token; three axes of positions."""

    sections: ClassVar[tuple[int, ...]] = (16, 24, 24)
    """Numbers of frequencies for time, height and width."""
    runs_per_frame = 0
    """Runs of tokens in the prompt for every frame of a video; 0: one for all frames."""

    def rotary(self) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(self.sections)}

    def text(self, geometry: Geometry, text: dict[str, Any]) -> dict[str, Any]:
        return {**text, "rope_parameters": self.rotary()}

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        vision, frames, is_video = config.vision_config, geometry.frames, geometry.frames > 1
        side = isqrt(geometry.tokens // frames) * vision.spatial_merge_size  # patches of a square image or frame
        width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        pixels, grid = ("pixel_values_videos", "video_grid_thw") if is_video else ("pixel_values", "image_grid_thw")
        runs = self.runs_per_frame * frames or 1
        run = [config.video_token_id if is_video else config.image_token_id] * (geometry.tokens // runs)
        return [config.vision_start_token_id, *run, config.vision_end_token_id] * runs, {
            pixels: torch.randn(frames * side * side, width, generator=generator),
            grid: torch.tensor([[frames, side, side]]),
        }


class Qwen2VL(QwenVL):
    shallow = {"depth": 1}

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {"depth": 32, "embed_dim": 80 * heads, "num_heads": heads, "mlp_ratio": 4}

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        tower = {"hidden_size": text["hidden_size"], **tower}
        text = self.text(geometry, text)
        return transformers.Qwen2VLConfig(vision_config=tower, text_config=text, **PLACEHOLDERS)


class Qwen25VL(QwenVL):
    shallow = {"depth": 1, "fullatt_block_indexes": [0]}

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {"depth": 32, "hidden_size": 80 * heads, "intermediate_size": round(3420 * scale), "num_heads": heads}

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        tower = {"out_hidden_size": text["hidden_size"], **tower}
        text = self.text(geometry, text)
        return transformers.Qwen2_5_VLConfig(vision_config=tower, text_config=text, **PLACEHOLDERS)


class Qwen3VL(QwenVL):
    shallow = {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]}
    sections = (24, 20, 20)
    runs_per_frame = 1
    model_types = ("qwen3_vl", "qwen3_vl_moe")  # dense, and with experts
    small: ClassVar[tuple[str, ...]] = ("qwen3-vl-2b", "qwen3-vl-4b")
    """Presets with the smaller tower."""

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads, small = narrowed(16, scale), geometry.name in self.small
        return {
            "depth": 24 if small else 27,
            "hidden_size": (64 if small else 72) * heads,
            "intermediate_size": round((4096 if small else 4304) * scale),
            "num_heads": heads,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17] if small else [8, 16, 24],
        }

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        config_class: Any = transformers.CONFIG_MAPPING[self.model_types[bool(geometry.experts)]]
        tower = {"out_hidden_size": text["hidden_size"], **tower}
        return config_class(vision_config=tower, text_config=self.text(geometry, text), **PLACEHOLDERS)


class Qwen35(Qwen3VL):
    """The tower of Qwen3-VL without DeepStack; linear attention in three of four layers."""

    shallow = {"depth": 1}
    sections = (11, 11, 10)
    model_types = ("qwen3_5", "qwen3_5_moe")
    small = ("qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b")

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        fields = super().tower(geometry, scale)
        del fields["deepstack_visual_indexes"]
        return fields

    def rotary(self) -> dict[str, Any]:
        return {**super().rotary(), "partial_rotary_factor": 0.25, "mrope_interleaved": True}

    def text(self, geometry: Geometry, text: dict[str, Any]) -> dict[str, Any]:
        narrow = text["num_attention_heads"] / geometry.heads
        heads = narrowed(16, narrow)
        shared = text["intermediate_size"] * geometry.shared_experts // geometry.intermediate
        return super().text(geometry, text) | {
            "layer_types": layer_types(geometry, text),
            "linear_num_key_heads": heads,
            "linear_num_value_heads": 2 * heads,
            **({"shared_expert_intermediate_size": shared} if geometry.experts else {}),
        }


class Pixtral(Recipe):
    patch = 16

    def tower(self, geometry: Geometry, scale: float) -> dict[str, Any]:
        heads = narrowed(16, scale)
        return {
            "model_type": "pixtral",
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
            "num_hidden_layers": 24,
            "num_attention_heads": heads,
            "patch_size": self.patch,
        }

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        return transformers.LlavaConfig(
            vision_config=tower,
            text_config={"model_type": "mistral", "sliding_window": None, **text},
            image_token_index=IMAGE,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )

    def image(self, geometry: Geometry, config: Any, generator: torch.Generator) -> RandomImage:
        side = isqrt(geometry.tokens)  # tokens of a square image
        pixels = side * config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1)
        rows = [*[config.image_token_id] * side, ROW_BREAK] * side
        return [*rows[:-1], IMAGE_END], {
            "pixel_values": torch.randn(1, config.vision_config.num_channels, pixels, pixels, generator=generator),
            "image_sizes": torch.tensor([[pixels, pixels]]),
        }


class Mistral3(Pixtral):
    patch = 14

    def config(self, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        kind = "ministral3" if geometry.name.startswith("ministral") else "mistral"
        text = {"model_type": kind, "sliding_window": None, **text}
        return transformers.Mistral3Config(vision_config=tower, text_config=text, image_token_index=IMAGE)
