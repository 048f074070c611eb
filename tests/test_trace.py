"""The table of docs/architecture.md counts what a call really runs."""

import re
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


def test_page_shows_the_ways_of_a_question():
    """Threads decide a little of what a server enters, so that a file more or less is no error."""
    measured = {name: len(one.files) for name, one in tool("trace.py").requests().items()}
    shown = dict(re.findall(r"^\| ((?:a|an) [^|]+) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name: pytest.approx(count, abs=2) for name, count in measured.items()} == {
        name: int(count) for name, count in shown.items()
    }


def test_counts_are_those_of_a_walk_that_is_known():
    """Two files of two rooms, one of them twice: a generator expression is a function, a comprehension is not."""
    from covist.budget import Count, Share
    from covist.schedule import Calibration, fixed_schedule

    made = fixed_schedule, Calibration, fixed_schedule
    given = (2, 8, 16), (((1.0, 0.5),),), (2, 8, 16)
    counted = tool("trace.py").trace(lambda: [make(*values) for make, values in zip(made, given, strict=True)])
    assert counted.files[0] == "schedule.py" and "formulas/ops.py" not in counted.files
    assert counted.functions_of("schedule.py")[0] == "fixed_schedule"
    assert "<genexpr>" in counted.functions_of("schedule.py")
    assert counted.changes == 0

    mixed = tool("trace.py").trace(lambda: [budget.count_for(16) for budget in (Share(0.3), Count(8), Share(0.3))])
    assert mixed.files == ["budget.py", "formulas/ops.py"]
    assert mixed.changes == 3
