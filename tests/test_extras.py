"""Without matplotlib and pyarrow: what works all the same, and the line that names the extra where one is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.batches import write_rows

from covist import tiny

LACKING = """
import json, sys
for package in ("matplotlib", "pyarrow"):
    sys.modules[package] = None
from covist.cli import main

for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as exit_:
        print(f"code {exit_.code}", file=sys.stderr)
"""


def run(folder: Path, *commands: str) -> subprocess.CompletedProcess[str]:
    """Command lines, one after the other in a process that lacks the packages of both extras."""
    words = json.dumps([command.split() for command in commands])
    return subprocess.run([sys.executable, "-c", LACKING, words], capture_output=True, text=True, cwd=folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    tiny.demo()[0].save(tmp_path / "scene.png")
    write_rows(tmp_path / "rows.jsonl", [{"id": "a", "image": "scene.png", "prompt": "where is the blue square?"}])
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    return tmp_path


def test_answers_pages_and_json_lines_need_no_extra(folder):
    ran = run(
        folder,
        "run --compare --budget 64",
        "show --out kept.html",
        "batch rows.jsonl --out answers --format jsonl --concentration 0.05",
        "doctor",
    )
    assert ran.stderr.count("code 0") == 4, ran.stderr
    assert "top-right" in ran.stdout
    assert "<svg" in (folder / "kept.html").read_text(encoding="utf-8")
    assert "top-right" in (folder / "answers" / "part-000000.jsonl").read_text()


def test_commands_that_need_a_missing_extra_fail_in_one_line_before_any_work(folder):
    ran = run(
        folder,
        "show --out kept.png",
        "run --overlay kept.svg",
        "reproduce --table main --out table.pdf",
        "batch rows.jsonl --out answers",
        "batch rows.parquet --out answers --format jsonl",
    )
    figures, parquet = "matplotlib: pip install 'covist[figures]'", "pyarrow: pip install 'covist[parquet]'"
    lines = ran.stderr.splitlines()
    assert lines[1::2] == ["code 2"] * 5, ran.stderr
    assert lines[::2] == [
        f"covist: a figure (kept.png) needs {figures}",
        f"covist: a figure (kept.svg) needs {figures}",
        f"covist: a figure (table.pdf) needs {figures}",
        f"covist: --format parquet, the default, needs {parquet}",
        f"covist: rows.parquet, a Parquet file, needs {parquet}",
    ]
    assert not (folder / "answers").exists()


def test_a_directory_of_results_has_no_plot_without_its_extra(folder):
    ran = run(folder, "eval --out results --limit 1 --methods random --budgets 64")
    note = "note: retention.png is left out: it needs matplotlib: pip install 'covist[figures]'"
    assert ran.stderr.count("retention.png") == 1 and note in ran.stderr and "code 0" in ran.stderr
    assert "answers, tables in results" in ran.stdout
    assert (folder / "results" / "results.md").exists() and not (folder / "results" / "retention.png").exists()


def test_figures_from_python_name_their_extra(monkeypatch):
    import covist

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    line = r"^covist\.viz\.draw_report needs matplotlib: pip install 'covist\[figures\]'$"
    with pytest.raises(covist.CovistError, match=line):
        covist.viz.draw_report(None, None)
