"""The entry point of group `lmms_eval.models`: lmms-eval learns here that there is a model `covist`."""

from __future__ import annotations

from lmms_eval.models.registry_v2 import ModelManifest


def manifest() -> ModelManifest:
    """`--model covist` for chat tasks, and with `--force_simple` for simple ones."""
    return ModelManifest(
        model_id="covist",
        simple_class_path="covist.lmms.model.CovistSimple",
        chat_class_path="covist.lmms.model.CovistChat",
    )
