"""Which families there are, and which one serves a given model."""

from __future__ import annotations

from functools import cache

from torch import nn

from covist.contract.family import Family, unwrap
from covist.errors import CovistError
from covist.plugins import load_modules

ANY_TOWER = ""
_FAMILIES: dict[tuple[str, str], type[Family]] = {}
"""(model class, model type of the vision tower) -> the family that serves it."""


def register_family(family: type[Family]) -> type[Family]:
    """Class decorator: make a family known under each of its model classes."""
    keys = [(model, tower) for model in family.model_classes for tower in family.tower_types or (ANY_TOWER,)]
    for key in keys:
        if key in _FAMILIES:
            first = _FAMILIES[key]
            raise CovistError(f"{key[0]} is served already, by the family {first.name} of {first.__module__}")
    _FAMILIES.update(dict.fromkeys(keys, family))
    return family


@cache
def _import_families() -> None:
    load_modules("covist.families")


def available_families() -> dict[str, tuple[str, ...]]:
    """Family name -> the transformers classes it serves.

    >>> covist.available_families()["llava-1.5"]
    ('LlavaForConditionalGeneration',)
    """
    _import_families()
    return {family.name: family.model_classes for family in dict.fromkeys(_FAMILIES.values())}


def family_for(model: nn.Module) -> Family:
    """Bind the family that serves `model`."""
    _import_families()
    unwrapped = unwrap(model)
    known_classes = {name for name, _ in _FAMILIES}
    served = next((a.__name__ for a in type(unwrapped).__mro__ if a.__name__ in known_classes), None)
    if served is not None:
        tower = getattr(getattr(unwrapped.config, "vision_config", None), "model_type", ANY_TOWER)
        family = _FAMILIES.get((served, tower)) or _FAMILIES.get((served, ANY_TOWER))
        if family is None:
            towers = ", ".join(sorted(other for name, other in _FAMILIES if name == served))
            raise CovistError(f"{served} with a {tower!r} vision tower is not supported; with these it is: {towers}")
        return family(unwrapped)
    known = ", ".join(f"{name} ({', '.join(classes)})" for name, classes in available_families().items())
    raise CovistError(
        f"{type(unwrapped).__name__} is not a supported model. Supported: {known}. "
        "To add a family, write one file with a Family subclass under @register_family (CONTRIBUTING.md)."
    )
