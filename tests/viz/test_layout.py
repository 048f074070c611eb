"""Where tokens lie, who stands for whom, and what the rebuilt image shows."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.reports import stage

from covist.grid import Grid
from covist.report.pixels import Preprocessing
from covist.report.stages import ImageReport
from covist.viz.layout import BLANK, outline, owners, rebuilt, seen_views

TWO_BY_THREE = Grid(((2, 3),))


def report(grid, *stages, layers=4):
    return ImageReport(0, grid, grid.size, 0, len(stages[-1].kept), *[(grid.size,) * layers] * 2, stages)


def plain(grid):
    return report(grid, stage(0, range(grid.size)))


def test_owners_follow_the_representatives_of_representatives():
    image = report(TWO_BY_THREE, stage(0, [1, 3, 5], [0, 0, 0, 1, 2, 2]), stage(2, [1, 5], [0, 1, 1]))
    assert owners(image, 0).tolist() == [1, 1, 1, 3, 5, 5]
    assert owners(image, 1).tolist() == [1, 1, 1, 5, 5, 5]
    assert image.tokens_before(1).tolist() == [1, 3, 5]


def test_nothing_stands_for_tokens_that_were_only_dropped():
    image = report(TWO_BY_THREE, stage(0, [0, 4]))
    assert owners(image, 0) is None
    assert image.discarded_at(0).tolist() == [1, 2, 3, 5]


def test_a_stage_that_removes_nothing_needs_no_assignment():
    image = report(TWO_BY_THREE, stage(0, range(6)), stage(2, [2], [0] * 6))
    assert owners(image, 1).tolist() == [2] * 6
    assert image.discarded_at(0).tolist() == image.discarded_at(1).tolist() == []


def test_views_share_a_cell_size_and_keep_their_shape():
    base, tiles = seen_views(plain(Grid(((4, 4), (2, 6)))), Image.new("RGB", (300, 100)))
    assert base.image.shape[0] // base.rows == tiles.image.shape[0] // tiles.rows
    assert base.image.shape[:2] == (base.rows * 80, base.columns * 80)
    assert (tiles.start, tiles.stop) == (16, 28)
    assert tiles.centres(np.array([16, 27])).tolist() == [[0.5, 0.5], [5.5, 1.5]]


def test_a_cropping_processor_shows_the_central_square():
    image = Image.new("RGB", (300, 100), "red")
    image.paste("blue", (100, 0, 200, 100))
    whole = plain(Grid(((4, 4),)))
    (view,) = seen_views(replace(whole, preprocessing=Preprocessing(center_crop=True)), image)
    assert (view.image == np.array([0, 0, 255], dtype=np.uint8)).all()
    (view,) = seen_views(whole, image)
    assert (view.image[0, 0] == np.array([255, 0, 0])).all()


def test_without_an_image_the_views_show_what_the_encoder_saw_or_grey():
    green = torch.tensor([0.0, 1.0, 0.0])[:, None, None].expand(3, 8, 8)
    known = Preprocessing((0.0,) * 3, (1.0,) * 3)
    (view,) = seen_views(replace(plain(TWO_BY_THREE), read_pixels=lambda: [green], preprocessing=known))
    assert (view.image == np.array([0, 255, 0], dtype=np.uint8)).all()
    (view,) = seen_views(plain(TWO_BY_THREE))
    assert (view.image == BLANK).all()


def test_views_that_are_parts_of_an_image_show_their_own_pixels():
    colours = [torch.tensor(colour)[:, None, None].expand(3, 8, 8) for colour in ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0))]
    parts = replace(
        plain(Grid(((2, 2), (2, 2)), "apart")),
        read_pixels=lambda: colours,
        preprocessing=Preprocessing((0.0,) * 3, (1.0,) * 3),
    )
    red, blue = seen_views(parts, Image.new("RGB", (30, 20), "teal"))
    assert (red.image == np.array([255, 0, 0])).all() and (blue.image == np.array([0, 0, 255])).all()


def test_rebuilt_cells_take_the_colour_of_their_representative():
    image = Image.new("RGB", (3, 2))
    for x, colour in enumerate(("red", "lime", "blue")):
        image.paste(colour, (x, 0, x + 1, 2))
    views = seen_views(plain(TWO_BY_THREE), image.resize((300, 200), Image.Resampling.NEAREST))
    cell = views[0].image.shape[0] // 2
    (painted,) = rebuilt(views, np.array([2, 2, 2, 3, 3, 2]), np.array([2, 3]))
    assert tuple(painted[cell // 2, cell // 2]) == tuple(painted[cell // 2, 3 * cell // 2])  # both shown by token 2
    assert painted[cell // 2, cell // 2, 2] > 200
    assert painted[3 * cell // 2, 3 * cell // 2, 0] > 200  # token 4, shown by the red token 3


def test_unrepresented_cells_stay_white():
    views = seen_views(plain(TWO_BY_THREE), Image.new("RGB", (30, 20)))
    cell = views[0].image.shape[0] // 2
    (painted,) = rebuilt(views, None, np.array([0]))
    assert painted[0, 0].tolist() == [0, 0, 0]
    assert painted[0, cell].tolist() == [255, 255, 255]


def covered(loops) -> set:
    """Cells whose centre lies inside an odd number of borders: crossings with vertical sides to the left."""
    sides = [side for loop in loops for side in zip(loop, loop[1:] + loop[:1], strict=True)]
    return {
        (x, y)
        for x in range(8)
        for y in range(8)
        if sum(a[0] == b[0] <= x and min(a[1], b[1]) <= y < max(a[1], b[1]) for a, b in sides) % 2
    }


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_an_outline_covers_exactly_its_cells(cells):
    loops = outline(cells)
    assert covered(loops) == cells
    for loop in loops:  # sides are straight and turn at every corner
        turns = zip(loop[-1:] + loop[:-1], loop, loop[1:] + loop[:1], strict=True)
        assert all((a[0] == b[0]) != (b[0] == c[0]) and (a[1] == b[1]) != (b[1] == c[1]) for a, b, c in turns)
