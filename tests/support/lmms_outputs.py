"""What lmms-eval 0.7.3 writes for the paper's tasks: made by hand in its format, because nobody ran them here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covist.reproduce.runs import LmmsRun, Settings

DATE = "20261116_120000"
METRICS: dict[str, dict[str, Any]] = {
    "gqa": {"exact_match": 0.6},
    "mmbench_en_dev": {"gpt_eval_score": 64.0, "submission": "N/A"},
    "mme": {"mme_perception_score": 1500.0, "mme_cognition_score": 350.0},
    "pope": {"pope_accuracy": 0.86, "pope_precision": 0.9, "pope_recall": 0.8, "pope_f1_score": 0.85},
    "scienceqa_img": {"exact_match": 0.7},
    "textvqa_val_ocr": {"exact_match": 0.58, "submission": "N/A"},
    "vqav2_val": {"exact_match": 0.76},
}
"""What each task reports: fractions, except for MMBench (percent) and MME (points)."""


def write_results(
    settings: Settings, run: LmmsRun, tasks: Mapping[str, Mapping[str, Any]] = METRICS, date: str = DATE
) -> Path:
    """Write a results file of a run as lmms-eval does, in a folder named after the model."""
    arguments = settings.arguments(run)
    folder = settings.folder(run) / arguments["pretrained"].replace("/", "__")
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model": "covist",
        "model_args": ",".join(f"{key}={value}" for key, value in arguments.items()),
        "limit": None if settings.limit is None else float(settings.limit),
    }
    results = {name: _keys(metrics) for name, metrics in tasks.items()}
    path = folder / f"{date}_results.json"
    path.write_text(json.dumps({"results": results, "config": config}), encoding="utf-8")
    return path


def _keys(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of one task under the keys of a results file."""
    found: dict[str, Any] = {"alias": "task"}
    for name, value in metrics.items():
        found |= {f"{name},none": value, f"{name}_stderr,none": 0.01, f"{name}_stderr_clt,none": "N/A"}
    return found
