"""LLaVA-OneVision: small models of the real class with the real processor, and the slow reference."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.image_processing_utils import select_best_resolution
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

from covist.families.processors import image_only
from support.case import Case
from support.families import lively, tokenizer, vocabulary
from support.slow_llava import SlowLlava, affinity

VIDEO = "<video>"
TOKENS = vocabulary(VIDEO)
TILE, PATCH, SIDE = 58, 14, 4  # tiles of 4 x 4 patches, which leave a few pixels over, as the published tower does
PINPOINTS = [[TILE * rows, TILE * columns] for rows in range(1, 4) for columns in range(1, 4)]
RESIZED = "anyres_max_2"
"""Grids of more than two tiles are resized."""


def onevision(
    layers: int = 4, kv_heads: int = 2, seed: int = 0, aspect_ratio: str = "anyres_max_9", **text: Any
) -> LlavaOnevisionForConditionalGeneration:
    vision = SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=TILE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    decoder = Qwen2Config(
        **{
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            **text,
        }
    )
    config = LlavaOnevisionConfig(
        vision_config=vision,
        text_config=decoder,
        image_token_index=TOKENS["<image>"],
        video_token_index=TOKENS[VIDEO],
        image_grid_pinpoints=PINPOINTS,
        vision_aspect_ratio=aspect_ratio,
    )
    torch.manual_seed(seed)
    return lively(LlavaOnevisionForConditionalGeneration(config).eval())


def onevision_processor(aspect_ratio: str = "anyres_max_9") -> Any:
    images = LlavaOnevisionImageProcessorPil(size={"height": TILE, "width": TILE}, image_grid_pinpoints=PINPOINTS)
    return image_only(LlavaOnevisionProcessor)(
        image_processor=images,
        tokenizer=tokenizer(VIDEO),
        num_image_tokens=SIDE**2,
        vision_feature_select_strategy="full",
        vision_aspect_ratio=aspect_ratio,
    )


class SlowOnevision(SlowLlava):
    """Tiles one by one through the tower; their patches are put in place row by row, cut and resized as arrays."""

    def encode(self, shown: Any) -> list[tuple[Tensor, Tensor, np.ndarray]]:
        alone = [count == 1 for count in shown.batch_num_images.tolist() for _ in range(count)]
        encoded = []
        for pixels, size, tiled in zip(shown.pixel_values, shown.image_sizes.tolist(), alone, strict=True):
            keys, embeddings = self.tiles(pixels, self.shape(size) if tiled else None)
            parts, markers = [keys[0]], []
            spans = [embeddings[0]]
            if tiled:
                keys, embeddings = (self.placed(part[1:], size) for part in (keys, embeddings))
                parts.append(keys.flatten(0, 1))
                newline = self.model.model.image_newline.expand(len(embeddings), 1, -1)
                spans.append(torch.cat([embeddings, newline], dim=1).flatten(0, 1))
                columns = embeddings.shape[1]
                markers = [SIDE**2 + row * (columns + 1) + columns for row in range(len(embeddings))]
            else:
                spans.append(self.model.model.image_newline[None])
                markers = [SIDE**2]
            span = torch.cat(spans)
            content = torch.ones(len(span), dtype=torch.bool)
            content[markers] = False
            encoded.append((span, content, affinity(torch.cat(parts), span[content])))
        return encoded

    def tiles(self, pixels: Tensor, shape: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
        """Keys and embeddings [tiles, patches, *] of the base view and of the cells of a grid of `shape`."""
        base, count = self.model.model, 1 if shape is None else 1 + shape[0] * shape[1]
        block, keys, embeddings = base.vision_tower.encoder.layers[-1], [], []
        for tile in pixels[:count]:
            states = base.vision_tower(tile[None], output_hidden_states=True).hidden_states
            keys.append(block.self_attn.k_proj(block.layer_norm1(states[-2]))[0])
            embeddings.append(base.multi_modal_projector(states[-1])[0])
        return torch.stack(keys), torch.stack(embeddings)

    def shape(self, size: list[int]) -> tuple[int, int]:
        height, width = select_best_resolution(size, PINPOINTS)
        return height // TILE, width // TILE

    def placed(self, tiles: Tensor, size: list[int]) -> Tensor:
        """The patches of the grid's tiles [tiles, patches, c] where they lie [rows, columns, c], without padding."""
        down, across = self.shape(size)
        whole = torch.stack(
            [
                torch.stack(
                    [
                        tiles[row // SIDE * across + column // SIDE, row % SIDE * SIDE + column % SIDE]
                        for column in range(across * SIDE)
                    ]
                )
                for row in range(down * SIDE)
            ]
        )
        scale = min(down * SIDE / size[0], across * SIDE / size[1])
        top, left = (
            (patches - int(round(length * scale, 7))) // 2
            for patches, length in zip(whole.shape[:2], size, strict=True)
        )
        cut = whole[top : len(whole) - top, left : whole.shape[1] - left]
        limit = int(self.model.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(cut.shape[0] * cut.shape[1] / (limit * SIDE**2))
        if ratio <= 1.1:
            return cut
        return bilinear(cut, int(cut.shape[0] // ratio), int(cut.shape[1] // ratio))


def bilinear(values: Tensor, rows: int, columns: int) -> Tensor:
    """Resize [h, w, c] by hand: every new cell looks at the place of its centre, between up to four old ones."""

    def weights(new: int, old: int) -> Tensor:
        matrix = torch.zeros(new, old)
        for cell in range(new):
            place = max(0.0, (cell + 0.5) * old / new - 0.5)
            first = int(place)
            matrix[cell, first] += 1 - (place - first)
            matrix[cell, min(first + 1, old - 1)] += place - first
        return matrix

    return torch.einsum("ra,cb,abd->rcd", weights(rows, values.shape[0]), weights(columns, values.shape[1]), values)


def newlines(model: Any, inputs: Any) -> int:
    images = {name: inputs[name] for name in ("pixel_values", "image_sizes", "batch_num_images")}
    spans = model.model.get_image_features(**images).pooler_output
    return sum(int((span == model.model.image_newline).all(-1).sum()) for span in spans)


def case(name: str, aspect_ratio: str, **options: Any) -> Case:
    return Case(
        name=name,
        family="llava-onevision",
        model_class="LlavaOnevisionForConditionalGeneration",
        build=partial(onevision, layers=8, aspect_ratio=aspect_ratio, **options),
        processor=partial(onevision_processor, aspect_ratio),
        image="<image>",
        turn="<|im_start|>user{}<|im_end|><|im_start|>assistant",
        slow=SlowOnevision,
        markers=newlines,
    )


CASES = (case("llava-onevision", "anyres_max_9"), case("llava-onevision resized", RESIZED, kv_heads=4, seed=3))
