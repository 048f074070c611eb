"""The table of docs/architecture.md counts what a call really runs."""

from pathlib import Path

import pytest
from support.tools import tool

PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def found():
    return tool("trace.py").traces()


def test_page_shows_the_measured_table(found):
    table = tool("trace.py").table(found)
    assert table in PAGE.read_text(encoding="utf-8"), f"put this into docs/architecture.md:\n{table}"


def test_counts_are_those_of_a_walk_that_is_known():
    """Two files of two rooms, one of them twice: a generator expression is a function, a comprehension is not."""
    from covist.schedule import Calibration, resolve_budget

    counted = tool("trace.py").trace(lambda: [resolve_budget(8, 16), Calibration(((1.0, 0.5),)), resolve_budget(8, 16)])
    assert counted.files[0] == "schedule.py" and "formulas/ops.py" not in counted.files
    assert counted.functions_of("schedule.py")[0] == "resolve_budget"
    assert "<genexpr>" in counted.functions_of("schedule.py")
    assert counted.changes == 0

    mixed = tool("trace.py").trace(lambda: [resolve_budget(share, 16) for share in (0.3, 8, 0.3)])
    assert mixed.files == ["schedule.py", "formulas/ops.py"]
    assert mixed.changes == 3
