"""The paper's figures as data, and its retention recomputed from its own scores."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.errors import CovistError
from covist.reproduce.paper import EFFICIENCY, OWN, TABLES, VANILLA, load_table
from covist.reproduce.retention import pope_f1, retention

SCORES = [name for name in TABLES if name != EFFICIENCY]
ROWS = [(name, row) for name in SCORES if name != "components" for row in load_table(name).rows]


def reference_of(table, row):
    """The full-model scores that a row's retention is relative to, as far as the paper gives them."""
    if row.reference == OWN:
        return next((one.scores for one in table.rows if one.system == VANILLA), None)
    return table.references.get(row.reference or "")


# Rows of systems whose sources' references the paper gives in full, in part (without VQAv2), or not at all.
RECOMPUTED = [(name, row) for name, row in ROWS if retention(row.scores, reference_of(load_table(name), row) or {})]


def label(case) -> str:
    name, row = case
    return f"{name}-{row.system}-{row.budget}"


def rounding(task: str) -> float:
    """How far a displayed score may lie from the one that was divided."""
    return 0.5 if task.startswith("mme") else 0.05


def ends(scores, reference) -> tuple[float, float]:
    """The lowest and the highest retention that displayed scores and references allow."""
    tasks = [task for task, score in scores.items() if score is not None]
    low = sum((scores[t] - rounding(t)) / (reference[t] + rounding(t)) for t in tasks) / len(tasks)
    high = sum((scores[t] + rounding(t)) / (reference[t] - rounding(t)) for t in tasks) / len(tasks)
    return 100 * low, 100 * high


@pytest.mark.parametrize("case", RECOMPUTED, ids=label)
def test_the_papers_retention_follows_from_its_own_scores(case):
    name, row = case
    low, high = ends(row.scores, reference_of(load_table(name), row))
    assert low - 0.05 <= row.retention <= high + 0.05
    assert low <= retention(row.scores, reference_of(load_table(name), row)) <= high


def test_most_rows_agree_to_the_last_digit_and_the_others_are_known():
    """Aggregates were computed before rounding: these are the rows in which displayed scores give another digit."""
    differing = {
        label((name, row))
        for name, row in RECOMPUTED
        if round(retention(row.scores, reference_of(load_table(name), row)), 1) != row.retention
    }
    assert differing == {
        "13b-CoViST-Pro-192",
        "next-CoViST-Pro-640",
        "next-CoViST-Fixed-320",
        "next-CoViST-Fixed-160",
        "next-CoViST-Pro-160",
        "qwen-CoViST-Fixed-256",
        "fixed-CaRe-192",
        "fixed-ZOO-Prune-128",
        "fixed-ZOO-Prune-64",
        "layers-CoViST-Pro-192",
        "after-VLM-Pruner-128",
        "layers-p-CoViST-Pro-64",
    }


def test_every_row_whose_reference_the_paper_gives_is_recomputed():
    counts = {name: sum(1 for one, _ in RECOMPUTED if one == name) for name in SCORES if name != "components"}
    assert counts == {
        "main": 10, "13b": 30, "next": 7, "qwen": 7,
        "fixed": 61, "fixed-p": 25, "layers": 39, "layers-p": 8, "after": 27,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["main", "next"])
def test_the_seven_task_rows_of_others_imply_one_reference_for_vqav2(name):
    """The paper does not say what the sources' full models score on VQAv2; their rows must agree on some value."""
    table = load_table(name)
    low, high = 0.0, 100.0
    for row in table.rows:
        known = reference_of(table, row)
        if known is None or "vqav2" in known or row.scores["vqav2"] is None:
            continue
        six = {task: score for task, score in row.scores.items() if task != "vqav2"}
        least, most = (6 * end / 100 for end in ends(six, known))
        low = max(low, (row.scores["vqav2"] - 0.05) / (7 * (row.retention + 0.05) / 100 - least))
        high = min(high, (row.scores["vqav2"] + 0.05) / (7 * (row.retention - 0.05) / 100 - most))
    assert 0 < low < high < 100
    assert high - low < 2


def test_the_six_task_rows_of_the_cumulative_study_are_those_of_the_appendix():
    """Rows (f) and (h) are the main configurations: their retention is that of Table 17 and 18, with a digit more."""
    shown = {(row.system[:3], row.budget): row.retention for row in load_table("components").rows}
    for letter, table, system in (("(f)", "fixed", "CoViST-Fixed"), ("(h)", "layers", "CoViST-Pro")):
        for row in load_table(table).rows:
            if row.system == system:
                assert round(shown[letter, row.budget], 1) == row.retention


@pytest.mark.parametrize("name", TABLES)
def test_every_table_names_its_place_and_holds_whole_rows(name):
    table = load_table(name)
    assert table.name == name and table.label.startswith("tab:") and table.number > 0 and table.caption
    assert table.title.startswith(f"Table {table.number}")
    assert len({(row.system, row.budget) for row in table.rows}) == len(table.rows)
    for row in table.rows:
        assert (row.budget is None) == (row.system == VANILLA)
        if name == EFFICIENCY:
            assert set(row.figures) == set(table.columns)
        else:
            assert 50 < row.retention < 101
            assert not row.scores or tuple(row.scores) == table.tasks
            assert row.reference is None or row.reference == OWN or row.reference in table.references


def test_rows_that_two_tables_share_have_the_same_scores():
    """The appendix repeats the main text's rows; an error of extraction in one of them would show."""
    main = {(row.system, row.budget): row.scores for row in load_table("main").rows}
    shared = 0
    for row in load_table("fixed").rows + load_table("layers").rows:
        system = row.system.rstrip("‡").replace("VisionZip^V", "VisionZip")
        if (system, row.budget) in main:
            shared += 1
            assert {task: main[system, row.budget][task] for task in row.scores} == dict(row.scores)
    assert shared == 44


def test_an_unknown_table_is_refused_with_the_names_there_are():
    with pytest.raises(CovistError, match="unknown table 'magic'; choose one of main, 13b, next, qwen, components"):
        load_table("magic")


@given(
    st.dictionaries(
        st.sampled_from(["gqa", "mmb", "mme", "pope"]), st.tuples(st.floats(1, 2000), st.floats(1, 2000)), min_size=1
    )
)
def test_retention_is_the_mean_of_the_ratios(pairs):
    scores = {task: score for task, (score, _) in pairs.items()}
    full = {task: reference for task, (_, reference) in pairs.items()}
    slow = 0.0
    for task in scores:
        slow += scores[task] / full[task]
    assert retention(scores, full) == pytest.approx(100 * slow / len(scores))
    assert retention(full, full) == pytest.approx(100)
    assert retention({**scores, "vqav2": None}, {**full, "vqav2": 76.7}) == pytest.approx(retention(scores, full))


def test_retention_does_not_leave_out_a_task_that_lacks_its_reference():
    assert retention({"gqa": 60.0, "pope": 80.0}, {"gqa": 60.0}) is None
    assert retention({}, {"gqa": 60.0}) is None


def literal_f1(pairs):
    """lmms-eval 0.7.3, tasks/pope/utils.py, in its own steps."""
    true_positives = sum(truth == "yes" and answer == "yes" for answer, truth in pairs)
    false_positives = sum(truth == "no" and answer == "yes" for answer, truth in pairs)
    false_negatives = sum(truth == "yes" and answer == "no" for answer, truth in pairs)
    precision = true_positives / (true_positives + false_positives) if true_positives + false_positives > 0 else 0
    recall = true_positives / (true_positives + false_negatives) if true_positives + false_negatives > 0 else 0
    return 100 * (2 * (precision * recall) / (precision + recall) if (precision + recall) > 0 else 0)


@given(st.lists(st.tuples(st.sampled_from(["yes", "no", "maybe"]), st.sampled_from(["yes", "no"]))))
def test_pope_counts_as_lmms_eval_does(pairs):
    assert pope_f1(pairs) == pytest.approx(literal_f1(pairs))


def test_pope_over_the_combined_splits_is_not_the_mean_over_the_splits():
    easy = [("yes", "yes")] * 9 + [("no", "yes")]
    hard = [("yes", "yes")] * 2 + [("yes", "no")] * 8
    assert pope_f1(easy + hard) != pytest.approx((pope_f1(easy) + pope_f1(hard)) / 2)
    assert pope_f1(easy + hard) == pytest.approx(100 * 2 * 11 / (2 * 11 + 9))


def test_table_files_hold_one_row_per_line():
    from covist.reproduce import paper

    for path in paper._FOLDER.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert text.count('    {"system"') == len(json.loads(text)["rows"]), path.name
    assert {path.stem for path in paper._FOLDER.glob("*.json")} == set(TABLES)
