"""Figures for one view, for a base view with tiles, for one and for several stages, with and without evidence."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from matplotlib.path import Path
from PIL import Image
from support.reports import CAPTION, SQUARE, TALL, TALL_TILES, TILED, WIDE, image_report

from covist.grid import Grid
from covist.viz import draw_answer, draw_overlay, draw_report, save_figure, seen_views
from covist.viz.theme import LIGHT
from covist.viz.weights import WeightScale


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def draw(report, drawing=draw_report):
    return drawing(report, seen_views(report, Image.new("RGB", (120, 60), "teal")), "question", "method")


@pytest.mark.parametrize(
    ("grid", "counts", "suffix"),
    [
        (SQUARE, (8,), ".png"),
        (WIDE, (8,), ".svg"),
        (TILED, (8,), ".pdf"),
        (SQUARE, (12, 6, 2), ".pdf"),
        (WIDE, (12, 6, 2), ".png"),
        (TILED, (12, 6, 2), ".svg"),
    ],
)
def test_every_layout_can_be_written(tmp_path, grid, counts, suffix):
    save_figure(draw(image_report(grid, counts)), tmp_path / f"figure{suffix}")
    assert (tmp_path / f"figure{suffix}").stat().st_size > 10_000


def test_one_stage_shows_maps_representatives_regions_and_the_rebuilt_image():
    shown = titles(draw(image_report(SQUARE, (8,))))
    assert shown == [
        "what the encoder sees",
        "attention",
        "distinctiveness",
        "instruction",
        "combined evidence",
        "layers 0-1: 8 representatives",
        "what each one stands for",
        "rebuilt from 8 representatives",
    ]


def test_several_stages_have_a_panel_each():
    shown = titles(draw(image_report(SQUARE, (12, 6, 2))))
    assert [title for title in shown if title.startswith("layers")] == [
        "layers 0-1: 12 representatives",
        "layers 2-3: 6 representatives",
        "layers 4-5: 2 representatives",
    ]
    assert "evidence, layer 2" in shown
    assert shown[-3:] == [f"rebuilt from {count} representatives" for count in (12, 6, 2)]


def test_constant_evidence_is_left_out():
    report = image_report(SQUARE, (12, 6))
    report.stages[1].maps["combined"] = torch.full((12,), 0.5)
    assert "evidence, layer 2" not in titles(draw(report))


def test_a_tiled_image_has_a_row_per_view():
    shown = titles(draw(image_report(TILED, (8,))))
    assert "base view" in shown and "tiles" in shown


@pytest.mark.parametrize(
    "views, names",
    [
        (((4, 4), (8, 6)), ["base view", "tiles"]),
        (((8, 12), (4, 4)), ["tiles", "base view"]),
        (((4, 4),) * 3, ["tile 1", "tile 2", "whole image"]),
    ],
)
def test_views_are_named_after_what_they_show(views, names):
    shown = titles(draw(image_report(Grid(views), (8,))))
    assert [name for name in shown if name in names] == names


def test_pruning_without_composition_is_drawn_without_regions():
    shown = titles(draw(image_report(SQUARE, (8,), composed=False)))
    assert shown == ["what the encoder sees", "layers 0-1: 8 representatives", "rebuilt from 8 representatives"]


def test_no_disc_is_too_small_to_be_seen():
    areas = WeightScale(500.0).areas(np.array([1.0, 500.0]), cell_points=5.0)
    assert areas[0] ** 0.5 > 1.5 and areas[1] ** 0.5 == pytest.approx(12.5)


def test_colours_of_weights_are_those_of_the_colour_bar():
    weights = np.linspace(1.0, 9.0, 17)
    expected = LIGHT.weight_colours((weights - 1) / 8)[:, :3]
    step = (len(LIGHT.weights) - 1) / 255  # of matplotlib's 256 colours, where a channel goes from 0 to 1 at once
    assert np.abs(WeightScale(9.0).colours(weights) - expected).max() < step


def test_larger_weights_make_larger_discs():
    report = image_report(SQUARE, (8,))
    (discs,) = [c for axes in draw(report, draw_overlay).axes for c in axes.collections if len(c.get_offsets()) == 8]
    areas = sorted(discs.get_sizes().tolist())
    weights = sorted(report.stages[0].weights.tolist())
    assert areas[-1] / areas[0] == pytest.approx(weights[-1] / weights[0], rel=1e-4)


@pytest.mark.parametrize("grid", [SQUARE, WIDE, TALL, TILED, TALL_TILES])
@pytest.mark.parametrize("counts", [(8,), (12, 6, 2)])
def test_headings_neither_overlap_nor_leave_the_figure(grid, counts):
    figure = draw(image_report(grid, counts))
    boxes = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("grid", [SQUARE, Grid(((24, 24),))])
def test_a_giant_weight_stays_inside_the_legend(grid):
    report = image_report(grid, (8,))
    report.stages[0].weights[3] = 400.0
    figure = draw(report)
    sizes = [handle.get_markersize() for handle in figure.legends[0].legend_handles if handle.get_marker() == "o"]
    assert sizes == sorted(sizes) and sizes[-1] <= 72 * 0.4  # points; the line of the legend is 0.72 inches high


def test_a_single_representative_in_a_single_layer_is_named_so():
    report = replace(image_report(SQUARE, (1,)), tokens_per_layer=(1,), cached_tokens_per_layer=(1,))
    shown = titles(draw(report))
    assert "layer 0: 1 representative" in shown and "rebuilt from 1 representative" in shown


def test_threads_are_explained_only_where_there_are_any():
    def explained(count: int) -> bool:
        (legend,) = draw(image_report(SQUARE, (count,))).legends
        return any("stands for" in text.get_text() for text in legend.get_texts())

    assert explained(8) and not explained(SQUARE.size)


@pytest.mark.parametrize("asked", ["short?", "what costs $5, and what $6_?", "why " * 200])
def test_the_title_keeps_the_answer_inside_the_figure(tmp_path, asked):
    report = image_report(SQUARE, (8,))
    figure = draw_answer(report, Image.new("RGB", (60, 60)), method="covist-fixed", prompt=asked, answer="because")
    title = figure.texts[0]
    assert title.get_text().endswith("because") and title.get_text().startswith(asked[:12].strip())
    assert title.get_window_extent().x1 < figure.bbox.x1
    save_figure(figure, tmp_path / "figure.png")


def hatched_cells(figure, grid: Grid) -> int:
    """Cells of a single view whose centre is hatched: inside an odd number of borders."""
    rows, columns = grid.views[0]
    patches = [patch for axes in figure.axes for patch in axes.patches if patch.get_hatch()]
    borders = [Path(border) for patch in patches for border in patch.get_path().to_polygons()]
    centres = [(x + 0.5, y + 0.5) for x in range(columns) for y in range(rows)]
    return sum(sum(border.contains_point(centre) for border in borders) % 2 for centre in centres)


def test_discarded_tokens_are_hatched_and_explained():
    figure = draw(image_report(WIDE, (5,), composed=False))
    assert hatched_cells(figure, WIDE) == WIDE.size - 5
    assert "discarded" in [text.get_text() for text in figure.legends[0].get_texts()]
    figure = draw(image_report(SQUARE, (8,)))
    assert hatched_cells(figure, SQUARE) == 0
    assert "discarded" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_discs_at_the_edge_are_whole():
    figure = draw(image_report(SQUARE, (8,)), draw_overlay)
    (discs,) = [c for axes in figure.axes for c in axes.collections if len(c.get_offsets()) == 8]
    assert not discs.get_clip_on()


def test_maps_say_what_bright_means():
    figure = draw(image_report(SQUARE, (12, 6, 2)))
    captions = {axes.get_title(): axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()}
    assert captions == dict.fromkeys(
        ["attention", "distinctiveness", "instruction", "combined evidence", "evidence, layer 2", "evidence, layer 4"],
        CAPTION,
    )
    boxes = [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    headings = [axes.title.get_window_extent() for axes in figure.axes if axes.get_title()]
    assert not any(box.overlaps(heading) for box in boxes for heading in headings)


def test_equal_figures_make_equal_files(tmp_path):
    for suffix in (".png", ".svg", ".pdf"):
        written = [tmp_path / f"{name}{suffix}" for name in ("one", "other")]
        for path in written:
            save_figure(draw(image_report(SQUARE, (8,))), path)
        assert written[0].read_bytes() == written[1].read_bytes(), suffix


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf"):
        save_figure(draw(image_report(SQUARE, (8,))), tmp_path / "figure.gif")
