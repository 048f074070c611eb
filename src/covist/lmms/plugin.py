"""The entry point of the group `lmms_eval.models`, through which lmms-eval finds the model `covist`."""

from __future__ import annotations

from lmms_eval.models.registry_v2 import ModelManifest


def manifest() -> ModelManifest:
    """`--model covist` for chat tasks, or with `--force_simple` for simple ones."""
    return ModelManifest(
        model_id="covist",
        simple_class_path="covist.lmms.model.CovistSimple",
        chat_class_path="covist.lmms.model.CovistChat",
    )
