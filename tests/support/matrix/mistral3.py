"""Mistral 3 over Mistral and Ministral text models: small models, the real processor, and the slow reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import Ministral3Config, Mistral3Config, Mistral3ForConditionalGeneration

from support.case import Case
from support.families import lively
from support.matrix.pixtral import TOKENS, SlowPixtral, mistral_config, pixtral_processor, tower_config

PATCH, MERGE = 14, 2
ROTARY = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.5,
}
"""Queries grow with their position from the 32nd token on."""


def mistral3(layers: int = 4, kv_heads: int = 2, seed: int = 0, **text: Any) -> Mistral3ForConditionalGeneration:
    return _built(mistral_config(layers, kv_heads, **text), seed)


def ministral3(layers: int = 4, kv_heads: int = 2, seed: int = 0, **text: Any) -> Mistral3ForConditionalGeneration:
    fields = mistral_config(layers, kv_heads, **text).to_dict()
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "rope_parameters")}
    return _built(Ministral3Config(**fields, rope_parameters=ROTARY), seed)


def _built(text: Any, seed: int) -> Mistral3ForConditionalGeneration:
    config = Mistral3Config(
        vision_config=tower_config(PATCH),
        text_config=text,
        image_token_index=TOKENS["[IMG]"],
        spatial_merge_size=MERGE,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = Mistral3ForConditionalGeneration(config).eval()
    torch.nn.init.uniform_(model.model.multi_modal_projector.norm.weight, 0.5, 1.5)
    return lively(model)


class SlowMistral3(SlowPixtral):
    merge = MERGE

    def projected(self, features: Tensor, height: int, width: int) -> Tensor:
        return self.model.model.multi_modal_projector(features[0], torch.tensor([[height, width]]))


def case(name: str, build: Any, **options: Any) -> Case:
    return Case(
        name=name,
        family="mistral3",
        model_class="Mistral3ForConditionalGeneration",
        build=partial(build, layers=8, **options),
        processor=partial(pixtral_processor, PATCH, MERGE),
        image="[IMG]",
        turn="USER: {} ASSISTANT:",
        slow=SlowMistral3,
    )


CASES = (case("mistral3", mistral3), case("mistral3 of ministral3", ministral3, kv_heads=4, seed=3))
