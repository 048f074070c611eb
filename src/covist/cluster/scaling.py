"""How many replicas there are: a number, or a range with Ray Serve's own options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from covist.errors import CovistError

_RANGE = re.compile(r"(\d+):(\d+)((?:,\w+=[^,=]+)*)", re.ASCII)


@dataclass(frozen=True)
class Scaling:
    """`replicas` at the start and at most; `autoscaling` holds Ray Serve's `AutoscalingConfig`, if there is one."""

    replicas: int = 1
    autoscaling: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, replicas: int | None, autoscale: str | None, target: int) -> Scaling:
        """From the options --replicas and --autoscale MIN:MAX[,OPTION=VALUE...]; a replica is meant to have `target`
        requests at once."""
        if autoscale is None:
            return cls(replicas or 1)
        if replicas is not None:
            raise CovistError("give either --replicas or --autoscale, not both")
        matched = _RANGE.fullmatch(autoscale)
        if matched is None:
            raise CovistError(f"--autoscale {autoscale}: write MIN:MAX[,OPTION=VALUE,...], 1:4 for example")
        low, high = int(matched[1]), int(matched[2])
        if not 1 <= low <= high:
            raise CovistError(f"--autoscale {autoscale}: MIN must be at least 1 and at most MAX")
        given = dict(part.split("=") for part in matched[3].split(",") if part)
        wanted = {"target_ongoing_requests": target, **given, "min_replicas": low, "max_replicas": high}
        return cls(high, _checked(wanted, set(given)))


def _checked(wanted: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """Ray's own types and bounds; it ignores names that it does not know, so we ask for them."""
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
