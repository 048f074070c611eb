"""Modules that register methods and families: covist's own, and those of other packages, found by entry points.

A package announces such modules under the group `covist.methods` or `covist.families`:

    [project.entry-points."covist.methods"]
    loudest = "covist_loudest"
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from importlib.metadata import entry_points


def load_modules(package: str) -> None:
    """Import every module of one of covist's packages, then the modules that others announce under its name.

    This order lets covist's own method or family win if two have the same name.
    """
    _import_all(package)
    _load_plugins(package)


def _import_all(name: str) -> None:
    """Import a module and, if it is a package, all modules in it.

    Modules with an underscore register nothing, and some of them import transformers, which lists and plans do not
    need.
    """
    module = importlib.import_module(name)
    for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not inner.name.startswith("_"):
            _import_all(f"{name}.{inner.name}")


def _load_plugins(group: str) -> None:
    """Import every module that installed packages announce under `group`.

    A plugin that fails is left out with a warning that names it, so that covist still works.
    """
    for point in entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else point.value
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            warnings.warn(f"plugin {point.name!r} of package {package} is left out ({reason})", stacklevel=2)
