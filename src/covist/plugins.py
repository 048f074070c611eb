"""Modules that register methods and families: ours, and those of other packages, found by their entry points.

A package announces modules that register something, under the group `covist.methods` or `covist.families`:

    [project.entry-points."covist.methods"]
    loudest = "covist_loudest"
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from importlib.metadata import entry_points


def load_modules(package: str) -> None:
    """Import every module of one of our packages, then what others announce under the entry point of its name.

    In that order, so that a name that is taken twice stays ours.
    """
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    _load_plugins(package)


def _load_plugins(group: str) -> None:
    """Import every module that installed packages announce under `group`.

    One that fails is left out with a warning that names it: somebody else's package must not keep covist from working.
    """
    for point in entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            package = point.dist.name if point.dist is not None else point.value
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            warnings.warn(f"plugin {point.name!r} of package {package} is left out ({reason})", stacklevel=2)
