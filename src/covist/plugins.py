"""Methods and families of other packages, found by their entry points.

A package announces modules that register something, under the group `covist.methods` or `covist.families`:

    [project.entry-points."covist.methods"]
    loudest = "covist_loudest"
"""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points


def load_plugins(group: str) -> None:
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
