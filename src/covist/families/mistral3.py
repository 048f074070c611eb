"""Mistral 3 (Mistral Small 3.1 and later, Ministral 3): a Pixtral tower whose patches are merged 2 x 2."""

from __future__ import annotations

from typing import Any

from covist.families.pixtral import PixtralTowerFamily
from covist.families.registry import register_family
from covist.plan import Geometry

SIZES: dict[str, Any] = {
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "tokens": 3025,
    "markers": 54,
    "budgets": (1024, 512, 256),
}
"""Sizes of all published models, with an image of 1540 x 1540 pixels, the largest that they accept."""


@register_family
class Mistral3(PixtralTowerFamily):
    name = "mistral3"
    model_classes = ("Mistral3ForConditionalGeneration",)
    token_count = "one per 28 x 28 pixels, plus row breaks"
    presets = (
        Geometry("mistral-small-3.1-24b", 40, 5120, 32768, **SIZES),
        Geometry("ministral-3-8b", 34, 4096, 14336, **SIZES),
    )
