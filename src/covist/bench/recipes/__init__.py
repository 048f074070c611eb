"""How to build random-weight models of published sizes."""

from __future__ import annotations

from covist.bench.recipes import any_size, squares
from covist.bench.recipes.recipe import Recipe
from covist.errors import CovistError
from covist.families.registry import preset_named, presets
from covist.plan import Geometry

RECIPES: dict[str, Recipe] = {
    "gemma3": squares.Gemma3(),
    "idefics3": squares.Idefics3("idefics3"),
    "internvl": squares.InternVL(),
    "llava-1.5": squares.Llava(),
    "llava-next": squares.LlavaNext(),
    "llava-next-video": squares.LlavaNextVideo(),
    "llava-onevision": squares.LlavaOnevision(),
    "mistral3": any_size.Mistral3(),
    "pixtral": any_size.Pixtral(),
    "qwen2-vl": any_size.Qwen2VL(),
    "qwen2.5-vl": any_size.Qwen25VL(),
    "qwen3-vl": any_size.Qwen3VL(),
    "qwen3_5": any_size.Qwen35(),
    "qwen3_5_moe": any_size.Qwen35(),
    "smolvlm": squares.Idefics3("smolvlm"),
}
"""Family, or model type of presets without a family -> its recipe."""


def buildable() -> dict[str, tuple[Geometry, Recipe]]:
    """Preset -> its geometry and recipe, for all presets that have one."""
    return {name: (size, RECIPES[owner]) for name, (size, owner) in presets().items() if owner in RECIPES}


def recipe_for(name: str) -> tuple[Geometry, Recipe]:
    """The geometry and the recipe of a preset."""
    geometry, owner = preset_named(name)
    if owner not in RECIPES:
        raise CovistError(f"there is no random-weight model of {name!r}; `covist plan --preset {name}` counts its cost")
    return geometry, RECIPES[owner]
