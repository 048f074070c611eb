"""Our figures beside the paper's, the commands for what is missing, and every way of writing the table."""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from support.lmms_outputs import METRICS, write_results

from covist.contract.method import Method
from covist.errors import CovistError
from covist.methods.create import create_method
from covist.reproduce import TABLES, Settings, load_table, open_table
from covist.reproduce.compare import compare
from covist.reproduce.drawing import FIGURES, TEXTS, check_destination, save
from covist.reproduce.efficiency import efficiency
from covist.reproduce.paper import EFFICIENCY
from covist.reproduce.runs import CHECKPOINTS, LmmsRun, run_of
from covist.reproduce.systems import method_of
from covist.reproduce.tasks import INCLUDED

SCORES = [name for name in TABLES if name != EFFICIENCY]
VANILLA, PRO = LmmsRun("llava-1.5-7b", "vanilla", None), LmmsRun("llava-1.5-7b", "covist-pro", 64)


def lmms_eval_parser() -> ArgumentParser:
    """The options of lmms-eval 0.7.3 that we use."""
    parser = ArgumentParser(exit_on_error=False)
    for name in ("--model", "--model_args", "--tasks", "--include_path", "--batch_size", "--output_path"):
        parser.add_argument(name, required=name != "--include_path")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--log_samples", action="store_true")
    return parser


@pytest.mark.parametrize("name", [*SCORES, "scenes"])
def test_every_command_says_what_its_run_is(name, tmp_path):
    """Printed for a shell, taken apart by one, and read by the options of lmms-eval and of our plugin."""
    beside = compare(name, Settings(results=tmp_path / "my results", limit=8, batch_size=4))
    jobs = [job for job in beside.jobs if job.command[0] == "lmms-eval"]
    assert [job.name for job in jobs] == [run.folder for run in beside.found]
    for job, run in zip(jobs, beside.found, strict=True):
        words = shlex.split(job.line)
        assert words == list(job.command)
        read = lmms_eval_parser().parse_args(words[1:])
        arguments = dict(pair.split("=", 1) for pair in read.model_args.split(","))
        assert arguments.pop("pretrained") == CHECKPOINTS[run.model].pretrained
        assert arguments.pop("budget") == (str(run.budget) if run.budget else "none")
        chosen = arguments.get("method") or f"covist-{arguments.get('strategy')}"
        assert run.method == "vanilla" or chosen == run.method
        assert (read.model, read.limit, read.batch_size, read.log_samples) == ("covist", 8, "4", True)
        assert read.output_path == str(job.folder) and not set(",=") & set(read.output_path)


@pytest.mark.parametrize("name", SCORES)
def test_every_row_that_we_can_run_names_a_method_of_ours(name):
    for row in load_table(name).rows:
        run = run_of(load_table(name), row)
        if run is not None and run.method != "vanilla":
            assert isinstance(create_method(run.method), Method)
            assert run.budget is not None
        elif run is None:
            assert method_of(row.system) is None


def test_rows_are_run_by_the_papers_own_reference_statistic():
    arguments = Settings().arguments(PRO)
    assert arguments["concentration"] == "running"
    assert "concentration" not in Settings().arguments(LmmsRun("llava-1.5-7b", "divprune", 64))


def test_counts_after_pruning_become_the_layer_means_of_the_papers_appendix():
    table = load_table("after")
    budgets = {row.budget: run_of(table, row).budget for row in table.rows if row.system == "FastV"}
    assert budgets == {192: 216, 128: 156, 64: 96}


def test_the_main_rows_of_the_cumulative_study_share_the_runs_of_the_main_table():
    rows = {row.system[1]: run_of(load_table("components"), row) for row in load_table("components").rows}
    assert rows["f"].method == "covist-fixed" and rows["h"].method == "covist-pro"
    assert rows["a"].method == "covist-row-a" and rows["g"].method == "covist-row-g"


def test_textvqa_is_asked_with_ocr_tokens():
    (command,) = (job.command for job in compare("main", budgets=[64], methods=["scope"], tasks=["textvqa"]).jobs[1:])
    assert "textvqa_val_ocr" in command and str(INCLUDED) in command
    text = (INCLUDED / "textvqa_val_ocr.yaml").read_text()
    assert re.search(r"^    ocr: true$", text, re.MULTILINE) and "task: textvqa_val_ocr" in text
    assert "--include_path" not in compare("main", tasks=["gqa"]).jobs[0].command


def test_mme_refuses_half_a_pair_and_other_tasks_do_not():
    with pytest.raises(CovistError, match="MME scores pairs of questions; give an even number"):
        compare("main", Settings(limit=7))
    assert compare("main", Settings(limit=7), tasks=["gqa"]).jobs


def test_only_missing_results_are_run(tmp_path):
    settings = Settings(results=tmp_path)
    write_results(settings, VANILLA)
    write_results(settings, PRO, {"gqa": METRICS["gqa"], "mme": METRICS["mme"]})
    vanilla, pro = compare("main", settings, methods=["covist-pro"], budgets=[64]).jobs
    assert vanilla.is_finished and vanilla.command == ()
    assert (
        pro.command[pro.command.index("--tasks") + 1] == "mmbench_en_dev,pope,scienceqa_img,textvqa_val_ocr,vqav2_val"
    )


def test_our_retention_stands_beside_the_papers(tmp_path):
    settings = Settings(results=tmp_path)
    write_results(settings, VANILLA)
    halved = {
        task: {name: value / 2 for name, value in metrics.items() if name != "submission"}
        for task, metrics in METRICS.items()
    }
    write_results(settings, PRO, halved)
    beside = compare("main", settings)
    line = next(line for line in beside.lines if line.run == PRO)
    assert line.row.retention == 99.1 and line.retention == pytest.approx(50)
    shown = [row for row in beside.sheet().rows if row[0] == "CoViST-Pro" and row[1] == "64 avg."]
    assert shown[0] == [
        "CoViST-Pro",
        "64 avg.",
        "paper",
        "60.9",
        "64.4",
        "1863",
        "86.0",
        "68.4",
        "57.0",
        "75.6",
        "99.1",
    ]
    assert shown[1] == ["CoViST-Pro", "64 avg.", "here", "30.0", "32.0", "925", "42.5", "35.0", "29.0", "38.0", "50.0"]


def test_a_retention_over_fewer_tasks_says_over_how_many(tmp_path):
    settings = Settings(results=tmp_path)
    write_results(settings, VANILLA)
    write_results(settings, PRO, {"gqa": {"exact_match": 0.3}, "mme": METRICS["mme"]})
    rows = [row for row in compare("main", settings).sheet().rows if row[2] == "here" and row[0] == "CoViST-Pro"]
    assert rows[0][-1] == "75.0 (2)"


def test_without_the_uncompressed_model_there_is_no_retention(tmp_path):
    settings = Settings(results=tmp_path)
    write_results(settings, PRO)
    line = next(line for line in compare("main", settings).lines if line.run == PRO)
    assert line.scores and line.retention is None


@pytest.mark.parametrize("name", ["components", "after"])
def test_tables_without_the_uncompressed_model_run_it_all_the_same(name):
    beside = compare(name)
    assert beside.jobs[0].name == "llava-1.5-7b/vanilla"
    assert all(row[0] != "Vanilla" for row in beside.sheet().rows)


@pytest.mark.parametrize("name", SCORES)
def test_a_sheet_repeats_the_paper_digit_by_digit(name):
    table, sheet = load_table(name), open_table(name).sheet()
    assert len(sheet.rows) == len(table.rows)
    for row, cells in zip(table.rows, sheet.rows, strict=True):
        shown = [None if cell == "-" else float(cell) for cell in cells[3:]]
        assert shown == [*(row.scores.get(task) for task in table.tasks), row.retention]
        assert cells[2] == "paper"


def test_rows_and_tasks_missing_from_the_table_are_refused():
    with pytest.raises(
        CovistError, match="no row for these methods and budgets; it has divprune, pyramiddrop, .* at 192"
    ):
        compare("main", methods=["magic"])
    with pytest.raises(CovistError, match="table main has no task mmmu; it has gqa, mmb, mme"):
        compare("main", tasks=["mmmu"])
    with pytest.raises(CovistError, match="splits paths at commas"):
        Settings(results="a,b")
    with pytest.raises(CovistError, match="--limit must be at least 1"):
        Settings(limit=0)


def test_the_computed_columns_of_the_efficiency_table_are_the_papers():
    """FLOPs by Eq. 19 to the last digit; caches and token counts to what their rounding leaves."""
    found = efficiency()
    for row, computed in zip(found.table.rows, found.computed, strict=True):
        assert computed["tflops"] == pytest.approx(row.figures["tflops"], abs=6e-4)
        assert computed["kv_mib"] == pytest.approx(row.figures["kv_mib"], abs=0.011)
        assert computed["mean_tokens"] == row.figures["mean_tokens"]


def test_bench_results_stand_beside_the_papers(tmp_path):
    figures = {"mean": 200.0, "median": 190.0}
    row = {
        "mean_tokens": 160.0, "markers": 48, "ttft_ms": figures, "prefill_ms": figures, "generation_ms": figures,
        "speedup": {"mean": 2.0, "median": 2.1}, "tokens_per_second": 10.0, "flops": 3.5e12, "peak_mib": None,
        "kv_mib": 134.8,
    }  # fmt: skip
    rows = [{**row, "method": "vanilla", "budget": None}, {**row, "method": "covist-pro", "budget": "160"}]
    content = {"results": rows, "protocol": {"prompts": 100}, "complete": True}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(content))
    found = efficiency(Settings(results=tmp_path))
    assert [bool(measured) for measured in found.measured] == [True, False, False, False, False, False, True]
    assert found.measured[-1]["ttft_ms"] == 200 and found.measured[-1]["mean_tokens"] == 208
    assert "peak_gib" not in found.measured[-1]
    assert not found.jobs[0].is_finished and not found.problems
    for broken, said in (
        (json.dumps({**content, "complete": False}), "holds an interrupted run, not 100 prompts"),
        (json.dumps({**content, "protocol": {"prompts": 3}}), "holds 3 prompts, not 100 prompts"),
        (json.dumps(content)[:-3], "is not a complete file of covist bench"),
    ):
        path.write_text(broken)
        found = efficiency(Settings(results=tmp_path))
        assert found.problems == [f"{path}: {said}"] and not any(found.measured)


@pytest.mark.parametrize(
    "name, ending",
    [
        *product([*TABLES, "scenes"], TEXTS),
        *product(["components", "efficiency"], FIGURES),  # the others differ in nothing but their rows
    ],
)
def test_every_table_can_be_written_and_says_whose_figures_it_holds(name, ending, tmp_path):
    path = check_destination(tmp_path / f"table{ending}")
    beside = open_table(name, Settings(results=tmp_path / "nothing"))
    save(beside.sheet(), beside.to_dict(), path)
    if ending == ".json":
        content = json.loads(path.read_text())
        assert content["table"] == name
        assert all(set(row) >= {"paper", "here"} for row in content["rows"])
    elif ending in (".md", ".tex") and name != "scenes":
        text = path.read_text()
        assert f"figures of Table {load_table(name).number}" in text and "not measured here" in text
        marked = [line for line in text.splitlines() if re.search(r"[|&] paper [|&]", line)]
        assert len(marked) == len(load_table(name).rows)
    elif ending == ".png":
        assert min(Image.open(path).size) > 100


def test_the_documented_counts_of_rows_are_those_of_the_tables():
    page = (Path(__file__).parent.parent.parent / "docs" / "reproducing.md").read_text()
    documented = {}
    for names, rows, runs in re.findall(r"^\| (`.*?) \|.*\| ([\d, ]+) \| ([\d, ]+) \|$", page, re.MULTILINE):
        for name, *counts in zip(names.split(", "), rows.split(", "), runs.split(", "), strict=True):
            documented[name.strip("`")] = tuple(map(int, counts))
    found = {name: (len(lines := compare(name).lines), sum(line.run is not None for line in lines)) for name in SCORES}
    unpublished = {"components", "after"}  # their line of the uncompressed model is not in the paper
    assert {name: documented[name] for name in SCORES} == {
        name: (rows - (name in unpublished), runs - (name in unpublished)) for name, (rows, runs) in found.items()
    }
    assert documented["efficiency"] == (7, 7)


def test_latex_is_escaped_and_balanced(tmp_path):
    for name in TABLES:
        path = tmp_path / "table.tex"
        beside = open_table(name)
        save(beside.sheet(), beside.to_dict(), path)
        text = path.read_text()
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        body = text[text.index(r"\toprule") :]
        assert not re.search(r"(?<!\\)[%#_]", body)
        columns = {line.count(" & ") for line in body.splitlines() if line.endswith(r"\\")}
        assert columns == {2 + len(beside.sheet().headings)}
        assert not re.search(r"[†‡²]", text)


def test_an_ending_that_we_do_not_know_is_refused(tmp_path):
    with pytest.raises(CovistError, match=r"must end in \.md, \.tex, \.json, \.png, \.svg or \.pdf"):
        check_destination(tmp_path / "table.xlsx")
