"""The parts of vLLM that the classes build on, checked by name and signature when an engine starts."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.resources import files
from inspect import signature

from covist.errors import CovistError

SEAMS: dict[str, list[str] | None] = json.loads(files("covist.vllm").joinpath("seams.json").read_text(encoding="utf-8"))
"""module:name -> its parameters; None if it takes none or they do not matter."""


def moved_seams(seams: dict[str, list[str] | None] = SEAMS) -> list[str]:
    """The parts that are missing, or whose parameters are others."""
    moved = []
    for place, wanted in seams.items():
        module, _, path = place.partition(":")
        try:
            found = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            moved.append(f"{place} is missing")
            continue
        if wanted is not None:
            given = [name for name in signature(found).parameters if name != "self"]  # type: ignore[arg-type]
            if given != wanted:
                moved.append(f"{place} takes {', '.join(given) or 'nothing'}")
    return moved


def require_seams() -> None:
    """Refuse a vLLM whose internals differ, whatever its version says."""
    if moved := moved_seams():
        raise CovistError(f"covist: this vLLM differs from the one that was tested: {'; '.join(moved)}")
