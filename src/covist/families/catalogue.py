"""Facts about every family, and about every model that no family serves."""

from __future__ import annotations

from typing import Any

from covist.families.refusals import NO_FAMILY, STATED, image_text_models, refusal
from covist.families.registry import families, served_classes


def catalogue() -> list[dict[str, Any]]:
    """One entry per family: classes, encoder signal, tokens, video, presets."""
    return [
        {
            "family": family.name,
            "classes": list(family.model_classes),
            "signal": family.encoder_signal,
            "tokens": family.token_count,
            "video": family.video,
            "presets": [geometry.name for geometry in family.presets],
        }
        for family in families()
    ]


def refused() -> list[dict[str, str]]:
    """One entry per image-text model of the installed transformers that no family serves, with the reason.

    The reason is derived from the default configuration; a checkpoint is judged by its own.
    """
    served = served_classes()
    return [
        {"model_type": model_type, "class": model_class, "reason": _reason(model_type)}
        for model_type, model_class in image_text_models().items()
        if model_class not in served
    ]


def _reason(model_type: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    # A stated reason needs no configuration; some releases of transformers cannot build a default one.
    return STATED.get(model_type) or refusal(CONFIG_MAPPING[model_type]()) or NO_FAMILY
