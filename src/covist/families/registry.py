"""All families, and which of them serves a given model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import nn

from covist.budget import Budget
from covist.contract.family import Family, unwrap
from covist.contract.guard import is_defined_again, is_own
from covist.errors import CovistError, choose_instead
from covist.families.presets import PRESETS
from covist.families.refusals import refusal
from covist.plan import Geometry
from covist.plugins import import_all, load_modules

ANY_TOWER = ""
_FAMILIES: dict[tuple[str, str], type[Family]] = {}
"""(model class, model type of the vision tower) -> the family that serves it."""


def register_family(family: type[Family]) -> type[Family]:
    """Class decorator: register a family for each of its model classes.

    >>> from covist.families.llava import Llava
    >>> @covist.register_family
    ... class MyLlava(Llava):
    ...     name, model_classes = "my-llava", ("MyLlavaForConditionalGeneration",)
    >>> covist.available_families()["my-llava"]
    ('MyLlavaForConditionalGeneration',)
    """
    if not is_own(family):
        _import_own()  # so that covist's own families keep their classes, whoever comes first
    keys = [(model, tower) for model in family.model_classes for tower in family.tower_types or (ANY_TOWER,)]
    for key in keys:
        first = _FAMILIES.get(key)
        if first is not None and not is_defined_again(family, first):
            raise CovistError(f"{key[0]} is already served by the family {first.name} of {first.__module__}")
    _FAMILIES.update(dict.fromkeys(keys, family))
    return family


@cache
def _import_own() -> None:
    import_all("covist.families")


@cache
def _import_families() -> None:
    load_modules("covist.families")


def families() -> list[type[Family]]:
    """Every family, once each, by name: which module was imported first must not show anywhere."""
    _import_families()
    return sorted(set(_FAMILIES.values()), key=lambda family: family.name)


def available_families() -> dict[str, tuple[str, ...]]:
    """The supported model families: name -> the transformers classes that it serves.

    >>> covist.available_families()["llava-1.5"]
    ('LlavaForConditionalGeneration',)
    """
    return {family.name: family.model_classes for family in families()}


def served_classes() -> list[str]:
    """Names of the transformers classes that some family serves."""
    _import_families()
    return sorted({model_class for model_class, _ in _FAMILIES})


def family_for(model: nn.Module) -> Family:
    """The family that serves `model`, bound to it."""
    unwrapped = unwrap(model)
    names = [ancestor.__name__ for ancestor in type(unwrapped).__mro__]
    return find_family(names, getattr(unwrapped, "config", None))[1](unwrapped)


def find_family(names: Iterable[str], config: Any) -> tuple[str, type[Family]]:
    """The first of the class names that a family serves, and that family; `config` is the model's."""
    names, known = list(names), served_classes()
    tower = getattr(getattr(config, "vision_config", None), "model_type", ANY_TOWER)
    served = next((name for name in names if name in known), None)
    if served is not None:
        family = _FAMILIES.get((served, tower)) or _FAMILIES.get((served, ANY_TOWER))
        if family is not None:
            return served, family
    if reason := refusal(config):
        raise CovistError(f"{names[0]} is not supported: {reason} (`covist models` lists supported models)")
    from covist.families.generic import Generic

    return names[0], Generic


# -- published sizes ---------------------------------------------------------------------------------------------------


def presets() -> dict[str, tuple[Geometry, str]]:
    """Preset name -> a published geometry, and the family that it belongs to, or the model type if no file has it."""
    owners = {**{family.name: family.presets for family in families()}, **PRESETS}
    return {geometry.name: (geometry, owner) for owner, geometries in owners.items() for geometry in geometries}


def default_budget(preset: str) -> Budget:
    """The default budget of the models of a published size."""
    owner = preset_named(preset)[1]
    return next((family.default_budget for family in families() if family.name == owner), Family.default_budget)


def preset_named(name: str) -> tuple[Geometry, str]:
    known = presets()
    if name not in known:
        raise CovistError(f"unknown geometry {name!r}; {choose_instead(name, known)}")
    return known[name]


def geometry_named(name: str) -> Geometry:
    return preset_named(name)[0]
