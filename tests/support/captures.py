"""What families hand over while a model runs."""

from __future__ import annotations

from typing import Any

import torch

from covist.contract.signals import ImageSignals
from covist.families.registry import family_for


def captured(model: Any, inputs: Any, requests: Any = (), family: Any = None) -> list[ImageSignals]:
    """The signals of every image, as the model's family hands them over, or another one."""
    seen: list[ImageSignals] = []
    hooks = (family or family_for(model)).capture(seen.extend, requests)
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return seen
