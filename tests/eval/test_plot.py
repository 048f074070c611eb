"""The plot of an evaluation: every line is named beside its end, and no name hides another."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from covist.budget import Count
from covist.eval import plot
from covist.eval.plot import COLOURS, plot_retention, spread
from covist.viz.theme import LIGHT


def score(method, budget, retention):
    interval = (retention - 1.0, retention + 1.5)
    return SimpleNamespace(
        method=method,
        budget=Count(budget),
        counted_tokens=budget,
        target=budget,
        retention=retention,
        retention_interval=interval,
        reached=True,
        nominal=False,
    )


def results(methods, budgets=(192, 64), retention=90.0):
    scores = [score("vanilla", 576, 100.0)]
    scores += [score(method, budget, retention - 20 / budget) for method in methods for budget in budgets]
    return SimpleNamespace(scores=scores, suite="scenes", about="10 questions about 2 images", measure="retention")


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw results and give the axes."""

    def draw(*arguments, **options):
        figures = []
        monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
        plot_retention(results(*arguments, **options), tmp_path / "retention.png")
        return figures[0].axes[0]

    return draw


@pytest.mark.parametrize("count", [1, 3, 25, 60])
def test_names_neither_overlap_nor_leave_the_figure(drawn, count):
    """All lines end at the same point, which is the hardest case."""
    axes = drawn(["covist-fixed", *(f"a-longer-name:setting={number}" for number in range(count))])
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == count + 2  # the uncompressed model and CoViST
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    whole = axes.figure.bbox
    assert all(box.x0 >= 0 and box.x1 <= whole.x1 and box.y0 >= 0 and box.y1 <= whole.y1 for box in boxes)
    assert axes.get_legend() is None


def test_covist_is_in_colour_and_the_others_are_grey(drawn):
    axes = drawn(["divprune", "covist-fixed", "covist-pro", "tome"])
    colours = [to_hex(container.lines[0].get_color()) for container in axes.containers]
    assert colours == [LIGHT.faint, LIGHT.faint, *COLOURS[:2]]  # CoViST is drawn last, on top
    named = {text.get_text().split()[0]: to_hex(text.get_color()) for text in axes.texts}
    assert (named["covist-fixed"], named["covist-pro"]) == COLOURS[:2]


def test_budgets_fall_to_the_right_where_methods_part(drawn):
    axes = drawn(["divprune"], budgets=(64, 192, 128))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["64", "128", "192"]
    left, right = axes.get_xlim()
    assert left > 192 > 64 > right


def test_a_budget_that_was_not_reached_is_a_remark_and_no_point(monkeypatch, tmp_path):
    found, figures = results(["tome", "fastv"], budgets=(192, 64)), []
    found.scores[-1].reached, found.scores[-1].counted_tokens = False, 72.9
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    plot_retention(found, tmp_path / "retention.png")
    drawn = [line.lines[0].get_xdata().tolist() for line in figures[0].axes[0].containers]
    assert drawn == [[192, 64], [192]]
    assert "fastv  89.9 at 192" in [text.get_text() for text in figures[0].axes[0].texts]
    remark = "not reachable at 64, where 72.9 tokens are the least: fastv"
    assert remark in [text.get_text() for text in figures[0].texts]


def test_many_budgets_that_were_not_reached_stay_inside_the_figure(monkeypatch, tmp_path):
    found, figures = results([f"method-with-a-name-{number}" for number in range(25)]), []
    for one in found.scores[2::2]:
        one.reached, one.counted_tokens = False, 72.9
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    plot_retention(found, tmp_path / "retention.png")
    remark = figures[0].texts[-1].get_window_extent()
    assert remark.x1 <= figures[0].bbox.x1 and remark.y0 >= figures[0].axes[0].get_window_extent().y1


def test_what_cannot_be_computed_is_left_out(drawn):
    axes = drawn(["divprune"], retention=float("nan"))
    assert [text.get_text() for text in axes.texts] == ["uncompressed  100"]


@given(st.lists(st.floats(-50, 150), min_size=1, max_size=12), st.floats(0.1, 20))
def test_spread_places_keep_their_distance_and_order(wanted, gap):
    places = spread(wanted, gap, -1e9, 1e9)
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(places[order]) >= gap - 1e-6).all()
    if (np.diff(np.sort(wanted)) >= gap).all():
        assert np.allclose(places, wanted)
    assert np.isclose(places.mean(), np.mean(wanted))  # nothing is pushed to one side


@given(st.lists(st.floats(-50, 150), min_size=1, max_size=8))
def test_spread_places_stay_inside_while_they_fit(wanted):
    places = spread(wanted, 10.0, 0.0, 100.0)
    assert places.min() >= 0 and places.max() <= 100
    assert (np.diff(np.sort(places)) >= 10 - 1e-6).all()


def test_published_counts_are_hollow_points_at_their_layer_mean(monkeypatch, tmp_path):
    found, figures = results(["priortr", "priortr:counts=nominal"], budgets=(192, 64)), []
    for one, mean in zip(found.scores[-2:], (228.0, 112.0), strict=True):
        one.reached, one.nominal, one.counted_tokens = False, True, mean
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    plot_retention(found, tmp_path / "retention.png")
    axes = figures[0].axes[0]
    points = [line.lines[0] for line in axes.containers]
    assert [line.get_xdata().tolist() for line in points] == [[192, 64], [228.0, 112.0]]
    assert [line.get_markerfacecolor() == "white" for line in points] == [False, True]
    assert "priortr:counts=nominal  89.7 at 112 tokens" in [text.get_text() for text in axes.texts]
    remarks = figures[0].texts[-1].get_text()
    assert "hollow: published counts for 64, 112.0 tokens: priortr:counts=nominal" in remarks
    left, right = axes.get_xlim()
    assert left > 228 > 64 > right
