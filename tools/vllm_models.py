"""Writes what covist knows about vLLM's model classes without vLLM: src/covist/vllm/models.json.

    .venv-vllm/bin/python tools/vllm_models.py

Builds the compressed class of every architecture that vLLM registers, and asks each what it takes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "src" / "covist" / "vllm" / "models.json"
MODALITIES = ("image", "video")


def shown_by(model_class: Any) -> list[str]:
    """Whether a class takes images and videos, as its processor or its placeholders say."""
    try:
        limits = model_class._processor_factory.info.get_supported_mm_limits(None)
    except Exception:  # it depends on the checkpoint
        limits = {modality: 1 for modality in MODALITIES if _has_placeholder(model_class, modality)}
    return [modality for modality in MODALITIES if {modality, "vision_chunk"} & {*limits}]


def _has_placeholder(model_class: Any, modality: str) -> bool:
    try:
        return model_class.get_placeholder_str(modality, 1) is not None
    except (ValueError, NotImplementedError):
        return False


def walk() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Modalities of every architecture whose class can be built, and why the others cannot."""
    from vllm.model_executor.models.registry import _MULTIMODAL_MODELS

    from covist.vllm import classes
    from covist.vllm.limits import UNFIT
    from covist.vllm.settings import PREFIX

    built: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    for name in sorted(_MULTIMODAL_MODELS):
        try:
            model_class = getattr(classes, f"{PREFIX}{name}")
            built[name] = [] if name in UNFIT else shown_by(model_class)
        except Exception as error:  # an import that this machine lacks
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return built, failed


def main() -> int:
    built, failed = walk()
    rows = [f"  {json.dumps(name)}: {json.dumps(modalities)}" for name, modalities in built.items() if modalities]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{len(rows)} classes with images or videos, {len(built) - len(rows)} without")
    print(*(f"not built: {name} ({reason})" for name, reason in failed.items()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
