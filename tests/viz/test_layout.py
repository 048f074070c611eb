"""Where tokens lie, who stands for whom, and what the rebuilt picture shows."""

import numpy as np
import torch
from PIL import Image

from covist.contract.stages import ImageReport, StageReport
from covist.grid import Grid
from covist.viz.layout import owners, rebuilt, seen_views, tokens_before


def stage(depth, indices, assignment=None, maps=None):
    kept = torch.tensor(indices)
    return StageReport(
        depth=depth,
        indices=kept,
        positions=kept,
        weights=torch.ones(len(indices)),
        withheld=0.0,
        assignment=None if assignment is None else torch.tensor(assignment),
        maps=maps or {},
    )


def report(grid, *stages, layers=4):
    return ImageReport(0, grid, grid.size, 0, len(stages[-1].indices), (grid.size,) * layers, stages)


class Processor:
    class image_processor:
        do_center_crop = True


TWO_BY_THREE = Grid(((2, 3),))


def test_owners_follow_the_representatives_of_representatives():
    first = stage(0, [1, 3, 5], [0, 0, 0, 1, 2, 2])
    second = stage(2, [1, 5], [0, 1, 1])
    image = report(TWO_BY_THREE, first, second)
    assert owners(image, 0).tolist() == [1, 1, 1, 3, 5, 5]
    assert owners(image, 1).tolist() == [1, 1, 1, 5, 5, 5]
    assert tokens_before(image, 1).tolist() == [1, 3, 5]


def test_nobody_stands_for_tokens_that_were_only_dropped():
    assert owners(report(TWO_BY_THREE, stage(0, [0, 4])), 0) is None


def test_a_stage_that_removes_nothing_needs_no_assignment():
    everything = stage(0, range(6))
    later = stage(2, [2], [0] * 6)
    assert owners(report(TWO_BY_THREE, everything, later), 1).tolist() == [2] * 6


def test_views_share_a_cell_size_and_keep_their_shape():
    picture = Image.new("RGB", (300, 100))
    base, tiles = seen_views(picture, Grid(((4, 4), (2, 6))))
    assert base.picture.shape[0] // base.rows == tiles.picture.shape[0] // tiles.rows
    assert base.picture.shape[:2] == (base.rows * 80, base.columns * 80)
    assert (tiles.start, tiles.stop) == (16, 28)
    assert tiles.centres(np.array([16, 27])).tolist() == [[0.5, 0.5], [5.5, 1.5]]


def test_a_cropping_processor_shows_the_central_square():
    picture = Image.new("RGB", (300, 100), "red")
    picture.paste("blue", (100, 0, 200, 100))
    (view,) = seen_views(picture, Grid(((4, 4),)), Processor())
    assert (view.picture == np.array([0, 0, 255], dtype=np.uint8)).all()
    (whole,) = seen_views(picture, Grid(((4, 4),)))
    assert (whole.picture[0, 0] == np.array([255, 0, 0])).all()


def test_rebuilt_cells_take_the_colour_of_their_representative():
    picture = Image.new("RGB", (3, 2))
    for x, colour in enumerate(("red", "lime", "blue")):
        picture.paste(colour, (x, 0, x + 1, 2))
    views = seen_views(picture.resize((300, 200), Image.Resampling.NEAREST), TWO_BY_THREE)
    cell = views[0].picture.shape[0] // 2
    (painted,) = rebuilt(views, np.array([2, 2, 2, 3, 3, 2]), np.array([2, 3]))
    assert tuple(painted[cell // 2, cell // 2]) == tuple(painted[cell // 2, 3 * cell // 2])  # both shown by token 2
    assert painted[cell // 2, cell // 2, 2] > 200
    assert painted[3 * cell // 2, 3 * cell // 2, 0] > 200  # token 4, shown by the red token 3


def test_unrepresented_cells_stay_white():
    views = seen_views(Image.new("RGB", (30, 20)), TWO_BY_THREE)
    cell = views[0].picture.shape[0] // 2
    (painted,) = rebuilt(views, None, np.array([0]))
    assert painted[0, 0].tolist() == [0, 0, 0]
    assert painted[0, cell].tolist() == [255, 255, 255]
