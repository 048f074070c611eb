"""Models of a published geometry with random weights, narrowed by a scale: for timing, where answers do not matter.

Depth, token counts, patch sizes and head widths stay those of the original, so that schedules, reductions and the
shape of the attention are the real ones; `scale` shrinks the number of heads and the feed-forward widths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from covist.bench.recipes import recipe_for
from covist.bench.recipes.recipe import FIRST_SPECIAL, VOCABULARY, Recipe, narrowed
from covist.errors import CovistError
from covist.families.refusals import image_text_models
from covist.families.text_tower import TextTower
from covist.plan import Geometry
from covist.tiny.text import build_caption_tokenizer


@dataclass(frozen=True)
class RandomModel:
    """An untrained model, with a text tower and a tokenizer if its recipe has them."""

    model: Any
    recipe: Recipe
    geometry: Geometry
    clip: TextTower | None
    tokenizer: Any | None

    def request(self, seed: int, text: int) -> dict[str, Tensor]:
        """Random pixels inside `text` random tokens: a few before the image, the rest after it."""
        random = torch.Generator().manual_seed(seed)
        words = torch.randint(3, FIRST_SPECIAL, (max(text, 2),), generator=random).tolist()
        before = min(5, len(words) - 1)
        image, pixels = self.recipe.image(self.geometry, self.model.config, random)
        ids = torch.tensor([[*words[:before], *image, *words[before:]]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self._token_types(ids), **pixels}

    def _token_types(self, ids: Tensor) -> dict[str, Tensor]:
        """1 for tokens of an image, 2 for those of a video, else 0, for models whose positions or masks need them."""
        config, taken = self.model.config, signature(self.model.forward).parameters
        types = (ids == config.image_token_id).int()
        if hasattr(config, "video_token_id"):
            types += 2 * (ids == config.video_token_id).int()
        return {name: types for name in ("mm_token_type_ids", "token_type_ids") if name in taken}


def build_random(
    name: str,
    scale: float = 0.1,
    seed: int = 0,
    *,
    decoder: Mapping[str, Any] | None = None,
    vision: Mapping[str, Any] | None = None,
) -> RandomModel:
    """A random model of the geometry `name`; `decoder` and `vision` override fields of its two configurations."""
    geometry, recipe = recipe_for(name)
    torch.manual_seed(seed)
    config = random_config(name, scale, decoder=decoder, vision=vision)
    model = getattr(transformers, image_text_models()[config.model_type])(config).eval()
    # If answers ended by chance, every method would generate another number of tokens.
    model.generation_config.eos_token_id = None
    clip = _text_tower(config.vision_config) if recipe.clip_text else None
    return RandomModel(model, recipe, geometry, clip, recipe.tokenizer())


def random_config(
    name: str, scale: float = 0.1, *, decoder: Mapping[str, Any] | None = None, vision: Mapping[str, Any] | None = None
) -> Any:
    """The configuration of a random model; the arguments are those of `build_random`."""
    if not 0 < scale <= 1:
        raise CovistError(f"scale must be in (0, 1], got {scale:g}")
    geometry, recipe = recipe_for(name)
    text = {**_decoder(geometry, scale), **(decoder or {})}
    tower = {**recipe.tower(geometry, scale), **(vision or {})}
    return recipe.config(geometry, text, tower)


def _decoder(geometry: Geometry, scale: float) -> dict[str, Any]:
    """Fields of a text configuration, by the names that all families share."""
    kv_heads = narrowed(geometry.kv_heads, scale)
    heads = narrowed(geometry.heads, scale, kv_heads)
    # kernels for experts want rows of a multiple of 16 bytes
    width = narrowed(geometry.intermediate, scale, 8) if geometry.experts else round(geometry.intermediate * scale)
    experts = {
        "num_experts": geometry.experts,
        "num_experts_per_tok": geometry.active_experts,
        "moe_intermediate_size": width,
    }
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": round(heads / geometry.heads * geometry.hidden),
        "intermediate_size": width,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": geometry.head_width,
        "max_position_embeddings": 32768,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **(experts if geometry.experts else {}),
    }


def _text_tower(vision: Any) -> TextTower:
    """A text tower with the projection width of the vision tower and the vocabulary of the embedded model."""
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
