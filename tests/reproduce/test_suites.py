"""The embedded model's task, on what the real lmms-eval wrote for it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from covist.reproduce import Settings, open_table

RECORDED = Path(__file__).parent / "recorded"


def families(run: str) -> dict[str, float]:
    """Scores in percent, from the samples one by one."""
    (path,) = (RECORDED / "tiny" / run).rglob("*_samples_covist_scenes.jsonl")
    scores = defaultdict(list)
    for line in path.read_text().splitlines():
        judged = json.loads(line)["accuracy"]
        scores[judged["family"]].append(judged["score"])
    return {family: 100 * mean(found) for family, found in scores.items()}


def test_recorded_results_of_the_embedded_model_make_a_table():
    beside = open_table("scenes", Settings(results=RECORDED), methods=["covist-fixed"], budgets=[64])
    assert beside.problems == []
    vanilla, fixed = beside.lines
    for line, run in ((vanilla, "vanilla"), (fixed, "covist-fixed-64")):
        found = {column.removeprefix("scenes:"): score for column, score in line.scores.items()}
        assert found == pytest.approx(families(run))
    full = families("vanilla")
    assert vanilla.retention == pytest.approx(100)
    assert fixed.retention == pytest.approx(100 * mean(families("covist-fixed-64")[name] / full[name] for name in full))
    assert [row[2] for row in beside.sheet().rows] == ["here", "here"]
    assert "the paper" not in beside.sheet().legend


def test_the_suite_must_be_a_task_before_it_is_run(tmp_path):
    export, vanilla, _ = open_table("scenes", Settings(results=tmp_path), methods=["random"], budgets=[64]).jobs
    assert export.command == ("covist", "export", "--suite", "scenes", "--out", str(tmp_path / "covist_scenes"))
    assert vanilla.command[vanilla.command.index("--include_path") + 1] == str(tmp_path / "covist_scenes")
    (tmp_path / "covist_scenes").mkdir()
    (tmp_path / "covist_scenes" / "covist_scenes.yaml").write_text("task: covist_scenes")
    assert open_table("scenes", Settings(results=tmp_path)).jobs[0].is_finished


def test_a_family_without_questions_does_not_count_as_missing(tmp_path):
    """A limited run may end before the first question of a family."""
    for path in RECORDED.rglob("*_results.json"):
        content = json.loads(path.read_text())
        results = content["results"]["covist_scenes"]
        kept = {name: value for name, value in results.items() if not name.startswith("relation")}
        content["results"]["covist_scenes"] = kept
        copy = tmp_path / path.relative_to(RECORDED)
        copy.parent.mkdir(parents=True)
        copy.write_text(json.dumps(content))
    beside = open_table("scenes", Settings(results=tmp_path), methods=["covist-fixed"], budgets=[64])
    assert all(job.is_finished for job in beside.jobs[1:]) and beside.problems == []
    assert beside.lines[1].scores["scenes:relation"] is None and beside.lines[1].retention is not None
