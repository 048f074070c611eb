"""What there is to choose from, as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from covist.methods.registry import available_methods


def catalogue() -> list[dict[str, Any]]:
    """One entry per method: its name, its position policy and everything its `MethodInfo` says."""
    return [
        {"name": name, "positions": method.default_positions, **asdict(method.info)}
        for name, method in available_methods().items()
    ]
