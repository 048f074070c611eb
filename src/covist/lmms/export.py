"""Export a suite as a task that lmms-eval runs offline.

DIR/images/*.png      one file per image
DIR/questions.jsonl   one line per question: images, family, question, answers, metric, choices
DIR/NAME.yaml         the task; it has the absolute path of the questions, so export again after moving the folder
DIR/utils.py          how a question is shown and scored
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from covist.errors import CovistError
from covist.eval.metrics import METRICS
from covist.eval.questions import posed
from covist.eval.suite import Item, Suite
from covist.lmms.scoring import ACCURACY
from covist.outputs import writable_directory

MAX_NEW_TOKENS = 16
"""The longest answer, for suites that otherwise use the length of the longest right one."""

_TASK = """\
# Written by `covist export`.
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
test_split: test
output_type: generate_until
doc_to_visual: !function utils.doc_to_visual
doc_to_text: question
doc_to_target: "{{{{answers[0]}}}}"
generation_kwargs:
  max_new_tokens: {tokens}
  temperature: 0
  do_sample: false
process_results: !function utils.process_results
score_key: score
cluster_key: image
metric_list:
{metrics}metadata:
  version: {version}
"""
_METRIC = """\
  - metric: {name}
    aggregation: {aggregation}
    higher_is_better: true
"""
_UTILS = '''\
"""Written by `covist export`: how lmms-eval shows and scores these questions."""

from pathlib import Path

from covist.lmms.scoring import mean_of_families, process_results  # noqa: F401 (named in the task)
from covist.request.images import load_image


def doc_to_visual(doc):
    return [load_image(Path(__file__).parent / name) for name in doc["images"]]
'''


def export_suite(suite: Suite, directory: str | Path, limit: int | None = None) -> str:
    """Write the first `limit` images of a suite, or all, and their questions; returns the name of the task."""
    items = suite.items(limit)
    for item in items:
        _check(item)
    folder = writable_directory(directory).resolve()
    (folder / "images").mkdir(exist_ok=True)
    task = "covist_" + re.sub(r"\W+", "_", suite.name)
    questions = folder / "questions.jsonl"
    with questions.open("w", encoding="utf-8") as file:
        for item in items:
            names = _save_images(item, folder)
            file.writelines(json.dumps(line) + "\n" for line in _lines(item, names))
    (folder / "utils.py").write_text(_UTILS, encoding="utf-8")
    (folder / f"{task}.yaml").write_text(_task(task, suite, questions), encoding="utf-8")
    return task


def _task(task: str, suite: Suite, questions: Path) -> str:
    asked = [*((family, "mean") for family in suite.families), (ACCURACY, "!function utils.mean_of_families")]
    metrics = "".join(_METRIC.format(name=json.dumps(name), aggregation=how) for name, how in asked)
    return _TASK.format(
        task=task,
        questions=json.dumps(str(questions)),
        tokens=suite.max_new_tokens or MAX_NEW_TOKENS,
        metrics=metrics,
        version=json.dumps(suite.fingerprint()),
    )


def _check(item: Item) -> None:
    """Refuse what lmms-eval could not score, before anything is written."""
    for asked in item.questions:
        if asked.metric not in METRICS:
            raise CovistError(
                f"the question {asked.question!r} is scored by {asked.metric}, which needs the uncompressed model; "
                "give an answer to export it"
            )


def _save_images(item: Item, folder: Path) -> list[str]:
    """Write the images of an item; returns the names of the files in the folder."""
    names = []
    for place, shown in enumerate(item.shown):
        if not isinstance(shown, Image.Image):
            raise CovistError(f"item {item.number} shows a video; only images can be exported")
        names.append(f"images/{item.number:04}-{place}.png")
        shown.save(folder / names[-1])
    return names


def _lines(item: Item, names: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "images": names,
            "family": asked.family,
            "question": posed(asked),
            "answers": asked.answers,
            "metric": asked.metric,
            "choices": asked.choices,
        }
        for asked in item.questions
    ]
