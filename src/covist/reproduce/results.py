"""Read the output of lmms-eval: `DATE_results.json` and `DATE_samples_TASK.jsonl`, in the folder of one run.

A file that is damaged, or was made by another run, is reported as a problem and raises no exception: lmms-eval writes
at the end of a run, so only a run whose file cannot be read must be repeated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covist.reproduce.retention import pope_f1
from covist.reproduce.tasks import Task, task_of

# Submission files such as submissions/mmbench_en_dev_results.json have the same ending, but no date.
_NAME = re.compile(r"(\d{8}_\d{6})_results\.json")


class _Unusable(Exception):
    """Why a file cannot be used for a run."""


@dataclass(frozen=True)
class Found:
    """Scores by column, and problems with files. A score is None if a limited run had no such question."""

    scores: Mapping[str, float | None]
    problems: tuple[str, ...] = ()


def read_run(folder: Path, tasks: Iterable[str], arguments: Mapping[str, str], limit: int | None = None) -> Found:
    """The scores of a run with these model arguments and this limit; of several files the newest counts."""
    scores: dict[str, float | None] = {}
    problems: list[str] = []
    for path in _result_files(folder):
        try:
            content = _content(path)
            _check_origin(content, arguments, limit)
        except _Unusable as reason:
            problems.append(f"{path}: {reason}")
            continue
        for name in tasks:
            try:
                if _was_run(task_of(name), content["results"]):
                    scores[name] = _score(task_of(name), content["results"], path)
            except _Unusable as reason:
                problems.append(f"{path}: {reason}")
    return Found(scores, tuple(problems))


def _result_files(folder: Path) -> list[Path]:
    """Results files, sorted by date. lmms-eval puts them into a folder named after the model."""
    found = [*folder.glob("*_results.json"), *folder.glob("*/*_results.json")]
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=lambda path: path.name)


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _Unusable(f"cannot be read ({error})") from None
    except json.JSONDecodeError:
        raise _Unusable("is incomplete JSON; its run was interrupted") from None
    whole = isinstance(content, dict) and all(isinstance(content.get(key), dict) for key in ("results", "config"))
    if not whole or not all(isinstance(result, dict) for result in content["results"].values()):
        raise _Unusable("is not a results file of lmms-eval")
    return content


def _check_origin(content: Mapping[str, Any], arguments: Mapping[str, str], limit: int | None) -> None:
    """Refuse a result of another run."""
    config = content["config"]
    given = dict(pair.partition("=")[::2] for pair in str(config.get("model_args", "")).split(","))
    if "method" not in given and given.get("budget") != "none":
        given.setdefault("strategy", "fixed")  # as the plugin does
    for key, value in arguments.items():
        if given.get(key) != value:
            raise _Unusable(f"was made with {key}={given.get(key, 'nothing')}, not {key}={value}")
    written = config.get("limit")
    reached = None if written in (None, -1) else written
    if reached != limit:
        raise _Unusable(f"was made with limit {reached or 'none'}, not {limit or 'none'}")


def _was_run(task: Task, results: Mapping[str, Any]) -> bool:
    return any(name in results for name in task.names) or bool(task.splits) and set(task.splits) <= set(results)


def _score(task: Task, results: Mapping[str, Mapping[str, Any]], path: Path) -> float | None:
    """The score of a task that was run; None if it had no question of this kind."""
    for name in task.names:
        if name in results:
            if task.may_lack and not any(_values(results[name], metric) for metric in task.metrics):
                return None
            return task.scale * sum(_figure(results[name], metric, name) for metric in task.metrics)
    return pope_f1(pair for split in task.splits for pair in _answers(path, split))


def _values(result: Mapping[str, Any], metric: str) -> list[Any]:
    """The values of a metric, under keys `metric,filter`; the filter is `none` unless a task has its own."""
    return [value for key, value in result.items() if key.partition(",")[0] == metric]


def _figure(result: Mapping[str, Any], metric: str, task: str) -> float:
    values = _values(result, metric)
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], (int, float)):
        raise _Unusable(f"has no {metric} of {task}")
    if not math.isfinite(values[0]):
        raise _Unusable(f"{metric} of {task} is {values[0]}")
    return float(values[0])


def _answers(path: Path, task: str) -> Iterator[tuple[str, str]]:
    """(answer, truth) of every sample of POPE."""
    date = _NAME.fullmatch(path.name)
    samples = path.with_name(f"{date[1] if date else ''}_samples_{task}.jsonl")
    try:
        for line in samples.read_text(encoding="utf-8").splitlines():
            judged = json.loads(line)["pope_f1_score"]
            yield judged["prediction"], judged["ground_truth"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _Unusable(f"POPE needs complete samples of {task} in {samples.name}: run with --log_samples") from None
