"""A suite as a task of lmms-eval, which runs offline.

DIR/images/*.png      one file per image
DIR/questions.jsonl   one line per question: image, family, question, answer
DIR/NAME.yaml         the task; it names the questions by their absolute path, so a folder that moved is exported again
DIR/utils.py          how a question is shown and scored
"""

from __future__ import annotations

import json
from pathlib import Path

from covist.eval.suite import Item, Suite
from covist.lmms.scoring import ACCURACY
from covist.outputs import writable_directory

MAX_NEW_TOKENS = 16

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
doc_to_target: answer
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
    return [load_image(Path(__file__).parent / doc["image"])]
'''


def export_suite(suite: Suite, directory: str | Path, limit: int | None = None) -> str:
    """Write the first `limit` images of a suite, or all, and their questions; returns the name of the task."""
    items = suite.items(limit)
    folder = writable_directory(directory).resolve()
    (folder / "images").mkdir(exist_ok=True)
    task = f"covist_{suite.name.replace('-', '_')}"
    questions = folder / "questions.jsonl"
    with questions.open("w", encoding="utf-8") as file:
        for item in items:
            item.image.save(folder / _image_name(item))
            file.writelines(json.dumps(line) + "\n" for line in _lines(item))
    (folder / "utils.py").write_text(_UTILS, encoding="utf-8")
    (folder / f"{task}.yaml").write_text(_task(task, suite, questions), encoding="utf-8")
    return task


def _task(task: str, suite: Suite, questions: Path) -> str:
    asked = [*((family, "mean") for family in suite.families), (ACCURACY, "!function utils.mean_of_families")]
    metrics = "".join(_METRIC.format(name=name, aggregation=aggregation) for name, aggregation in asked)
    return _TASK.format(
        task=task,
        questions=json.dumps(str(questions)),
        tokens=MAX_NEW_TOKENS,
        metrics=metrics,
        version=json.dumps(suite.fingerprint()),
    )


def _lines(item: Item) -> list[dict[str, str]]:
    return [
        {"image": _image_name(item), "family": asked.family, "question": asked.question, "answer": asked.answers[0]}
        for asked in item.questions
    ]


def _image_name(item: Item) -> str:
    return f"images/{item.number:04}.png"
