"""What docs/budget.md advises follows from the tables of docs/results-tables.md and of the paper."""

import pytest

import published
from covist.families.registry import preset_named
from covist.reproduce.paper import load_table

FAMILIES = {
    "presence": "existence",
    "colour": "color",
    "place": "quadrant",
    "a digit": "digit",
    "a letter": "letter",
    "a number": "reading",
    "counting in crowded images": "dense counting",
}
BEDS = {"first test bed": 576, "second test bed": 1280}
METHODS = ("covist-max", "covist-fixed", "covist-pro")


def by_task(bed: str) -> dict[tuple[str, str], dict[int, float]]:
    """(method, family) -> budget -> what is left of the uncompressed model's score."""
    (_, _, *families), rows = published.table(published.TABLES, f"### By task, {bed}")
    found: dict[tuple[str, str], dict[int, float]] = {}
    for method, budget, *cells in rows:
        for family, cell in zip(families, cells, strict=True):
            if budget:
                found.setdefault((method, family), {})[int(budget)] = float(cell)
    return found


def smallest(left: dict[int, float], keep: float) -> int | None:
    """The smallest budget that keeps so much, together with every larger one."""
    passed = None
    for budget in sorted(left, reverse=True):
        if left[budget] < keep:
            break
        passed = budget
    return passed


def shown(budget: int | None, tokens: int) -> str:
    return "–" if budget is None else f"{budget} ({round(100 * budget / tokens)} %)"


@pytest.mark.parametrize(("left", "passed"), [({64: 99.0, 32: 98.0, 16: 97.9}, 32), ({64: 97.9, 32: 99.0}, None)])
def test_a_budget_passes_together_with_every_larger_one(left, passed):
    assert smallest(left, 98) == passed


def test_the_smallest_budgets_by_task_follow_from_the_retention_by_task():
    _, rows = published.table("budget.md", "### Measured on the embedded models")
    bed, asked = "", set()
    for question, *cells in rows:
        if not any(cells):
            bed = question.strip("*").partition(",")[0]
            continue
        kind = question.partition(":")[0]
        family = FAMILIES.get(kind, kind) if (bed, kind) != ("second test bed", "a letter") else "glyph"
        left = by_task(bed)
        expected = [shown(smallest(left[method, family], keep), BEDS[bed]) for method in METHODS for keep in (98, 90)]
        assert cells == expected, question
        asked.add((bed, family))
    assert asked == {(bed, family) for bed in BEDS for _, family in by_task(bed)}


@pytest.mark.parametrize(("column", "table"), [(1, "main"), (2, "next"), (3, "qwen")])
def test_the_budgets_of_large_models_follow_from_the_papers_tables(column, table):
    paper = load_table(table)
    tokens = preset_named(paper.model)[0].tokens
    scores = {(row.system, row.budget): row.scores for row in paper.rows}
    head, rows = published.table("budget.md", "### Reported by the paper for large models")
    assert f"{tokens:,}" in head[column]
    for benchmark, *cells in rows:
        task = benchmark.partition(":")[0].lower()
        left = {
            budget: round(100 * found[task] / scores["Vanilla", None][task], 1)
            for (system, budget), found in scores.items()
            if system == "CoViST-Fixed"
        }
        budget = smallest(left, 98)
        assert cells[column - 1] == f"{shown(budget, tokens)}: {left[budget]}"
