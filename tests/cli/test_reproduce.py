"""`covist reproduce` as a user runs it; a small program stands in for lmms-eval."""

from __future__ import annotations

import json
import re
import shlex
import stat
import sys
from pathlib import Path

import pytest
from PIL import Image

from covist.reproduce import Settings, open_table
from covist.reproduce.paper import load_table
from covist.reproduce.runs import run_of

FAKE = '''#!{python}
"""Writes what lmms-eval would write. Fails, says nothing, or cuts its file off for the methods that are named so."""
import json, pathlib, sys

words = sys.argv[1:]
options = {{word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}}
arguments = dict(pair.split("=", 1) for pair in options["--model_args"].split(","))
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(options) + "\\n")
method = arguments.get("method", "")
print("loading")
if method == "scope":
    sys.exit("CUDA out of memory")
if method == "mmtok":
    sys.exit(0)
share = 1.0 if arguments["budget"] == "none" else 0.5
values = {{
    "gqa": {{"exact_match,none": 0.62 * share}},
    "mme": {{"mme_perception_score,none": 1500 * share, "mme_cognition_score,none": 360 * share}},
}}
results = {{task: values[task] for task in options["--tasks"].split(",")}}
limit = float(options["--limit"]) if "--limit" in options else None
content = {{"results": results, "config": {{"model_args": options["--model_args"], "limit": limit}}}}
folder = pathlib.Path(options["--output_path"], "model")
folder.mkdir(parents=True)
text = json.dumps(content)
(folder / "20261116_120000_results.json").write_text(text[:40] if method == "vscan" else text)
'''
SOME = ("--tasks", "gqa,mme", "--budgets", "64")


@pytest.fixture
def lmms_eval(tmp_path) -> Path:
    path = tmp_path / "fake lmms"
    path.write_text(FAKE.format(python=sys.executable, calls=str(tmp_path / "calls")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(tmp_path: Path) -> list[dict[str, str]]:
    path = tmp_path / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_the_main_table_is_printed_and_the_commands_of_its_rows_on_request(covist, tmp_path):
    ran = covist("reproduce", "--table", "main", "--results", tmp_path / "none")
    assert ran.code == 0 and ran.stderr == ""
    assert "Lines marked paper show the figures of Table 1 of the paper" in ran.stdout
    assert "VisionTrim (ICLR 2026)" in ran.stdout and "avg. 78" in ran.stdout and "98.0" in ran.stdout
    runs = {run_of(load_table("main"), row) for row in load_table("main").rows} - {None}
    assert f"Still to run: {len(runs)} of {len(runs)}. --run runs them, --commands prints their commands." in ran.stdout
    assert "lmms-eval --model" not in ran.stdout
    asked = covist("reproduce", "--table", "main", "--results", tmp_path / "none", "--commands")
    commands = [shlex.split(line) for line in asked.stdout.splitlines() if line.startswith("lmms-eval ")]
    assert len(commands) == len(runs) >= 28
    assert all(command[1:3] == ["--model", "covist"] for command in commands)


def test_commands_alone_are_a_script_for_the_shell(covist, tmp_path):
    results = tmp_path / "my results"
    ran = covist("reproduce", "--commands", "--limit", "8", "--results", results, "--methods", "covist-pro", *SOME)
    made, *lines = ran.stdout.splitlines()
    assert shlex.split(made) == ["mkdir", "-p", str(results)]
    assert [line.split()[0] for line in lines] == ["#", "lmms-eval", "#", "lmms-eval"]
    last = shlex.split(lines[-1])
    assert last[last.index("--limit") + 1] == "8"
    assert last[last.index("--output_path") + 1] == str(results / "limit-8" / "llava-1.5-7b" / "covist-pro-64")


def test_run_makes_what_is_missing_and_shows_it(covist, tmp_path, lmms_eval):
    asked = ("reproduce", "--run", "--results", tmp_path / "out", "--launcher", shlex.quote(str(lmms_eval)), *SOME)
    ran = covist(*asked, "--methods", "covist-pro")
    assert ran.code == 0, ran.stderr
    assert [call["--model_args"].split(",")[1] for call in calls(tmp_path)] == ["budget=none", "budget=64"]
    assert "here" in ran.stdout and "50.0 (2)" in ran.stdout and "Every run of this table is finished." in ran.stdout
    again = covist(*asked, "--methods", "covist-pro,divprune")
    assert again.code == 0
    assert [call["--model_args"].split(",")[2] for call in calls(tmp_path)[2:]] == ["method=divprune"]


def test_a_stopped_run_goes_on_with_the_tasks_it_lacks(covist, tmp_path, lmms_eval):
    asked = ("--results", tmp_path / "out", "--launcher", shlex.quote(str(lmms_eval)), "--methods", "covist-pro")
    assert covist("reproduce", "--run", *asked, "--tasks", "gqa", "--budgets", "64").code == 0
    for folder in (tmp_path / "out").glob("*/*/model"):
        folder.rename(folder.with_name("earlier"))
    assert covist("reproduce", "--run", *asked, *SOME).code == 0
    assert [call["--tasks"] for call in calls(tmp_path)] == ["gqa", "gqa", "mme", "mme"]


def test_a_failed_run_is_reported_and_does_not_stop_the_others(covist, tmp_path, lmms_eval):
    """One that exits with an error, one that leaves no results, and one that leaves half a file."""
    out = tmp_path / "out"
    launcher = ("--launcher", shlex.quote(str(lmms_eval)))
    ran = covist("reproduce", "--run", "--results", out, *launcher, *SOME, "--methods", "scope,mmtok,vscan,covist-pro")
    assert ran.code == 1
    assert "scope-64 failed: exit code 1, last line of the log: CUDA out of memory" in ran.stderr
    assert "mmtok-64 failed: no results" in ran.stderr
    assert "vscan-64 failed: no results" in ran.stderr
    assert "20261116_120000_results.json: is incomplete JSON; its run was interrupted" in ran.stderr
    assert "Still to run: 3 of 5" in ran.stdout and "50.0 (2)" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_limited_and_whole_results_lie_apart(covist, tmp_path, lmms_eval):
    asked = ("--results", tmp_path / "out", "--launcher", shlex.quote(str(lmms_eval)), *SOME, "--methods", "covist-pro")
    limited = covist("reproduce", "--run", "--limit", "4", *asked)
    assert limited.code == 0 and "first 4 questions" in limited.stdout
    assert "Still to run: 2 of 2" in covist("reproduce", *asked).stdout
    assert "is finished" in covist("reproduce", "--limit", "4", *asked).stdout


@pytest.mark.parametrize("table", ["main", "efficiency", "scenes"])
def test_a_narrow_window_cuts_no_figure_off(covist, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "60")
    results = Path(__file__).parent.parent / "reproduce" / "recorded"
    shown = covist("reproduce", "--table", table, "--results", results).stdout
    for cells in open_table(table, Settings(results=results)).sheet().rows:
        assert re.search(r" +".join(map(re.escape, cells[2:])), shown), cells


@pytest.mark.parametrize("ending", ["md", "tex", "json", "png"])
def test_out_writes_the_table_by_its_ending(covist, tmp_path, ending):
    path = tmp_path / f"table.{ending}"
    ran = covist("reproduce", "--table", "13b", "--results", tmp_path / "none", "--out", path)
    assert ran.code == 0 and path.is_file()
    if ending == "png":
        assert Image.open(path).size[0] > 800
    else:
        assert "CoViST-Pro" in path.read_text()


def test_the_efficiency_table_shows_what_follows_from_the_shape(covist, tmp_path):
    ran = covist("reproduce", "--table", "efficiency", "--results", tmp_path / "none")
    assert ran.code == 0
    assert "computed" in ran.stdout and "43.408" in ran.stdout
    commands = covist("reproduce", "--table", "efficiency", "--results", tmp_path / "none", "--commands").stdout
    assert "covist bench --geometry llava-next-7b --scale 1 --methods covist-fixed,covist-pro" in commands
    assert "covist plan --preset llava-next-7b" in " ".join(ran.stdout.split())


def test_json_keeps_the_papers_figures_apart(covist, tmp_path):
    found = covist("reproduce", "--table", "qwen", "--results", tmp_path / "none", "--json").json
    assert found["paper"]["place"] == "Table 3 of the paper, tab:cross-qwen"
    row = found["rows"][-1]
    assert row["system"] == "CoViST-Fixed" and row["paper"]["scores"]["mmb_cn"] == 77.6
    assert row["here"] == {"scores": {}, "retention": None}
    assert all(not run["finished"] for run in found["runs"])


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--table", "mian"], "unknown table 'mian'; did you mean main?"),
        (["--methods", "magic"], "no row for these methods and budgets"),
        (["--budgets", "11%"], "give counts of the table"),
        (["--tasks", "mmmu"], "table main has no task mmmu"),
        (["--limit", "7"], "give an even number"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--out", "table.xlsx"], "must end in .md"),
        (["--out", "nowhere/table.md"], "there is no directory nowhere"),
        (["--results", "a,b"], "splits paths at commas"),
        (["--model", "a,b"], "splits model arguments at commas"),
        (["--launcher", "accelerate 'launch"], "--launcher accelerate 'launch: no closing quotation"),
        (["--run", "--launcher", "no-such-program"], "program 'no-such-program' was not found"),
        (["--table", "efficiency", "--methods", "scope"], "the efficiency table cannot be restricted"),
    ],
)
def test_wrong_input_is_refused_in_one_line(covist, arguments, words):
    ran = covist("reproduce", *arguments)
    assert ran.code == 2 and ran.stdout == ""
    assert words in ran.stderr and len(ran.stderr.strip().splitlines()) == 1
