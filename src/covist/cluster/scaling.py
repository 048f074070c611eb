"""How many replicas there are: a number, or a range with Ray Serve's own options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from covist.errors import CovistError

_RANGE = re.compile(r"(\d+):(\d+)((?:,\w+=[^,=]+)*)", re.ASCII)


@dataclass(frozen=True)
class Scaling:
    """`replicas` is the greatest number of replicas; `autoscaling` is Ray Serve's `AutoscalingConfig`, if any."""

    replicas: int = 1
    autoscaling: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, replicas: int | None, autoscale: str | None, target: int) -> Scaling:
        """Read the options --replicas and --autoscale MIN:MAX[,OPTION=VALUE...].

        target: requests that one replica should have at a time
        """
        if autoscale is None:
            return cls(replicas or 1)
        if replicas is not None:
            raise CovistError("give either --replicas or --autoscale, not both")
        matched = _RANGE.fullmatch(autoscale)
        if matched is None:
            raise CovistError(f"--autoscale {autoscale}: give MIN:MAX[,OPTION=VALUE,...], for example 1:4")
        low, high = int(matched[1]), int(matched[2])
        if not 1 <= low <= high:
            raise CovistError(f"--autoscale {autoscale}: MIN must be at least 1 and at most MAX")
        given = dict(part.split("=") for part in matched[3].split(",") if part)
        wanted = {"target_ongoing_requests": target, **given, "min_replicas": low, "max_replicas": high}
        return cls(high, _checked(wanted, set(given)))


def _checked(wanted: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """Check the options with Ray's own class; it ignores unknown names, so these are checked here."""
    from pydantic import ValidationError
    from ray.serve.config import AutoscalingConfig

    known = set(AutoscalingConfig.model_fields) - {"policy"}
    if unknown := given - known:
        raise CovistError(f"--autoscale: Ray Serve has no option {min(unknown)!r}; it has {', '.join(sorted(known))}")
    try:
        config = AutoscalingConfig(**wanted)
    except (ValidationError, ValueError) as error:
        raise CovistError(f"--autoscale: {' '.join(str(error).split())}") from None
    return config.model_dump(include=set(wanted))
