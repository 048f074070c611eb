"""The figures of the results show what the tables say now, and every name on them can be read."""

import re
from itertools import combinations

import pytest

import published
import results_figures as figures

DRAWINGS = figures.drawings()
EVERY = [(name, theme) for name in DRAWINGS for theme in figures.THEMES]


@pytest.mark.parametrize(("name", "theme"), EVERY)
def test_a_figure_was_drawn_from_what_the_tables_say(name, theme):
    path = figures.path_of(name, theme)
    assert figures.drawn_from(path) == DRAWINGS[name].source, f"run {figures.COMMAND}"


def test_pages_show_every_figure_in_both_themes_and_no_other():
    text = "".join(page.read_text(encoding="utf-8") for page in published.DOCS.glob("*.md"))
    shown = re.findall(r"\(results/(\S+)-(light|dark)\.svg#only-(\w+)\)", text)
    assert sorted(shown) == sorted((name, theme, theme) for name, theme in EVERY)
    assert sorted(figures.FIGURES.iterdir()) == sorted(figures.path_of(*one) for one in EVERY)


@pytest.mark.parametrize(("name", "heading"), [("retention", published.FIRST), ("retention-hd", published.SECOND)])
def test_every_row_that_reached_a_budget_is_a_line_with_all_its_points(name, heading):
    _, rows = published.table(published.TABLES, heading)
    points = {method.rstrip(" ¹"): sum("[" in cell for cell in cells) for method, *cells in rows}
    assert {line.name: len(line.points) for line in DRAWINGS[name].lines} == {
        method: count for method, count in points.items() if count
    }
    assert sum(not line.grey for line in DRAWINGS[name].lines) <= 3 + len(DRAWINGS[name].budgets) + 1


@pytest.mark.parametrize(("name", "theme"), EVERY)
def test_names_neither_overlap_nor_leave_the_figure(name, theme):
    figure = figures.draw(DRAWINGS[name], figures.THEMES[theme])
    boxes = [text.get_window_extent() for text in (*figure.texts, *figure.axes[0].texts)]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_the_summary_says_what_the_tables_of_every_method_say():
    head, rows = published.table("results.md", "## In short")
    assert head[1:] == ["CoViST-Max", "CoViST-Fixed", "CoViST-Pro", "best other method", "random"]
    expected = []
    for heading in (published.FIRST, published.SECOND):
        every = published.retention(heading)
        for budget in every["covist-max"]:
            at = {name: points[budget].value for name, points in every.items() if budget in points}
            best = max((name for name in at if name not in figures.OURS), key=lambda name: at[name])
            ours = [str(at[name]) for name in figures.OURS]
            expected.append([str(budget), *ours, f"{best} {at[best]}", str(at["random"])])
    assert [[row[0].split()[0], *row[1:]] for row in rows] == expected


@pytest.mark.parametrize("cell", ["", "100", "least 72.9: 92.3", "89.1"])
def test_a_cell_without_an_interval_is_not_drawn_as_a_point(cell):
    assert published.measured(cell) is None


def test_a_cell_with_an_interval_is_read_to_the_digit():
    assert published.measured("97.9 [95.0, 101.4]") == (97.9, 95.0, 101.4)


def test_a_missing_section_is_named():
    with pytest.raises(ValueError, match="no table below '## Nowhere'"):
        published.table("results.md", "## Nowhere")
