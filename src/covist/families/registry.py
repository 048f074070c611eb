"""Which families there are, and which one serves a given model."""

from __future__ import annotations

from functools import cache

from torch import nn

from covist.contract.family import Family, unwrap
from covist.errors import CovistError
from covist.plugins import load_modules

_FAMILIES: dict[str, type[Family]] = {}


def register_family(family: type[Family]) -> type[Family]:
    """Class decorator: make a family known under each of its model classes."""
    for model_class in family.model_classes:
        if model_class in _FAMILIES:
            first = _FAMILIES[model_class]
            raise CovistError(f"{model_class} is served already, by the family {first.name} of {first.__module__}")
        _FAMILIES[model_class] = family
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
    for ancestor in type(unwrapped).__mro__:
        if ancestor.__name__ in _FAMILIES:
            return _FAMILIES[ancestor.__name__](unwrapped)
    known = ", ".join(f"{name} ({', '.join(classes)})" for name, classes in available_families().items())
    raise CovistError(
        f"{type(unwrapped).__name__} is not a supported model. Supported: {known}. "
        "To add a family, write one file with a Family subclass under @register_family (CONTRIBUTING.md)."
    )
