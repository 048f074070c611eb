"""Figures for one view, for a base view with tiles, for one and for several stages, with and without evidence."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from PIL import Image

from covist.contract.stages import ImageReport, StageReport
from covist.grid import Grid
from covist.viz import draw_answer, draw_overlay, draw_report, save_figure, seen_views

SQUARE, WIDE, TALL = Grid(((6, 6),)), Grid(((3, 9),)), Grid(((25, 7),))
TILED, TALL_TILES = Grid(((6, 6), (4, 12))), Grid(((6, 6), (18, 5)))


def image_report(grid: Grid, counts: tuple[int, ...], composed: bool = True) -> ImageReport:
    """A report in which every stage keeps evenly spread tokens and maps are random."""
    random = torch.Generator().manual_seed(0)
    stages, before = [], torch.arange(grid.size)
    for number, count in enumerate(counts):
        places = torch.linspace(0, len(before) - 1, count).round().long()
        names = ("attention", "distinctiveness", "instruction", "combined") if number == 0 else ("combined",)
        stages.append(
            StageReport(
                depth=2 * number,
                indices=before[places],
                positions=before[places],
                weights=1 + 7 * torch.rand(count, generator=random),
                withheld=0.0,
                assignment=(before[:, None] - before[places]).abs().argmin(1) if composed else None,
                maps={name: torch.rand(len(before), generator=random) for name in names} if composed else {},
            )
        )
        before = before[places]
    return ImageReport(0, grid, grid.size, 0, counts[0], (counts[0],) * (2 * len(counts)), tuple(stages))


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def draw(report, drawing=draw_report):
    return drawing(report, seen_views(Image.new("RGB", (120, 60), "teal"), report.grid), "question", "method")


@pytest.mark.parametrize("grid", [SQUARE, WIDE, TILED])
@pytest.mark.parametrize("counts", [(8,), (12, 6, 2)])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_every_layout_can_be_written(tmp_path, grid, counts, suffix):
    save_figure(draw(image_report(grid, counts)), tmp_path / f"figure{suffix}")
    assert (tmp_path / f"figure{suffix}").stat().st_size > 10_000


def test_one_stage_shows_maps_representatives_regions_and_the_rebuilt_picture():
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
    assert "evidence, layer 2" in shown and shown[-1] == "rebuilt from 2 representatives"


def test_constant_evidence_is_left_out():
    report = image_report(SQUARE, (12, 6))
    report.stages[1].maps["combined"] = torch.full((12,), 0.5)
    assert "evidence, layer 2" not in titles(draw(report))


def test_a_tiled_picture_has_a_row_per_view():
    shown = titles(draw(image_report(TILED, (8,))))
    assert "base view" in shown and "tiles" in shown


def test_pruning_without_composition_is_drawn_without_regions():
    shown = titles(draw(image_report(SQUARE, (8,), composed=False)))
    assert shown == ["what the encoder sees", "layers 0-1: 8 representatives", "rebuilt from 8 representatives"]


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
    report = replace(image_report(SQUARE, (1,)), tokens_per_layer=(1,))
    shown = titles(draw(report))
    assert "layer 0: 1 representative" in shown and "rebuilt from 1 representative" in shown


def test_threads_are_explained_only_where_there_are_any():
    def explained(count: int) -> bool:
        (legend,) = draw(image_report(SQUARE, (count,))).legends
        return any("stands for" in text.get_text() for text in legend.get_texts())

    assert explained(8) and not explained(SQUARE.size)


@pytest.mark.parametrize("asked", ["short?", "what costs $5, and what $6_?", "why " * 200])
def test_the_title_keeps_the_answer_inside_the_figure(tmp_path, asked):
    said = {"method": "covist-fixed", "prompt": asked, "answer": "because"}
    figure = draw_answer(image_report(SQUARE, (8,)), Image.new("RGB", (60, 60)), None, **said)
    title = figure.texts[0]
    assert title.get_text().endswith("because") and title.get_text().startswith(asked[:12].strip())
    assert title.get_window_extent().x1 < figure.bbox.x1
    save_figure(figure, tmp_path / "figure.png")


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\.png or \.svg"):
        save_figure(draw(image_report(SQUARE, (8,))), tmp_path / "figure.gif")
