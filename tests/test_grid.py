import pytest
import torch
from formulas.inputs import array, close, generator
from hypothesis import given
from hypothesis import strategies as st
from reference import evidence as reference

from covist.grid import Grid, PartialGrid, evenly

VIEWS = [((1, 1),), ((1, 5),), ((4, 1),), ((3, 5),), ((4, 4), (2, 6)), ((1, 1), (3, 2))]


@pytest.mark.parametrize("views", VIEWS)
def test_smoothing_is_the_binomial_kernel_inside_each_view(views):
    values = torch.rand(Grid(views).size, generator=generator())
    close(Grid(views).smooth(values), reference.binomial(array(values), views))


@pytest.mark.parametrize("views", VIEWS)
def test_neighbour_similarity_uses_the_neighbours_that_exist(views):
    features = torch.nn.functional.normalize(torch.randn(Grid(views).size, 6, generator=generator()))
    close(
        Grid(views).neighbour_similarity(features @ features.T), reference.adjacent_similarity(array(features), views)
    )


@pytest.mark.parametrize("views", VIEWS)
def test_coordinates_are_cell_centres_of_each_view(views):
    close(Grid(views).coordinates(), reference.coordinates(views), 1e-6)


def test_smoothing_keeps_a_constant():
    close(Grid(((3, 4), (2, 2))).smooth(torch.full((16,), 0.3)), [0.3] * 16, 1e-6)


@pytest.mark.parametrize("views", [(), ((0, 3),), ((2, -1),)])
def test_an_empty_grid_is_refused(views):
    with pytest.raises(ValueError, match="Grid"):
        Grid(views)


def test_values_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match=r"Grid.smooth: values must have shape \[6\], got \[5\]"):
        Grid(((2, 3),)).smooth(torch.rand(5))


HOLES = [(((3, 5),), (0, 1, 4, 6, 7, 8, 12, 14)), (((2, 2), (2, 3)), (3, 4, 5, 8)), (((1, 1), (2, 2)), (0, 1, 4))]


def cells(views):
    """(view, row, column) of every token."""
    return [(v, r, c) for v, (rows, columns) in enumerate(views) for r in range(rows) for c in range(columns)]


@pytest.mark.parametrize("views, left", HOLES)
def test_smoothing_leaves_masked_tokens_out(views, left):
    values = torch.rand(len(left), generator=generator())
    places = [cells(views)[token] for token in left]
    expected = []
    for view, row, column in places:
        weights = [
            (2 - abs(row - r)) * (2 - abs(column - c)) if v == view and max(abs(row - r), abs(column - c)) < 2 else 0
            for v, r, c in places
        ]
        expected.append(sum(w * float(x) for w, x in zip(weights, values, strict=True)) / sum(weights))
    close(PartialGrid.of(Grid(views), left).smooth(values), expected, 1e-6)


@pytest.mark.parametrize("views, left", HOLES)
def test_masked_tokens_are_not_neighbours(views, left):
    features = torch.nn.functional.normalize(torch.randn(len(left), 6, generator=generator()))
    places = [cells(views)[token] for token in left]
    expected = []
    for own, (view, row, column) in zip(features, places, strict=True):
        near = [
            float(own @ other)
            for other, (v, r, c) in zip(features, places, strict=True)
            if v == view and abs(row - r) + abs(column - c) == 1
        ]
        expected.append(sum(near) / len(near) if near else 1.0)
    close(PartialGrid.of(Grid(views), left).neighbour_similarity(features @ features.T), expected, 1e-6)


@pytest.mark.parametrize("views, left", HOLES)
def test_tokens_that_are_left_keep_their_places(views, left):
    partial = PartialGrid.of(Grid(views), left)
    assert partial.size == len(left)
    assert torch.equal(partial.coordinates(), Grid(views).coordinates()[list(left)])


def test_a_video_has_a_coordinate_of_time_and_an_image_has_none():
    close(Grid(((1, 2),) * 4, "frames").coordinates()[::2, 2], [1 / 8, 3 / 8, 5 / 8, 7 / 8], 1e-6)
    assert Grid(((1, 2),) * 4).coordinates().shape == (8, 2)
    assert Grid(((1, 2),) * 4, "frames").frames == 4 and Grid(((1, 2),) * 4).frames == 1


def test_the_next_frame_is_one_frame_over_the_number_of_frames_away():
    places = Grid(((2, 2),) * 5, "frames").places()
    close(torch.linalg.vector_norm(places[4] - places[0]), 1 / 5, 1e-6)


def test_views_that_are_apart_have_nothing_near_to_each_other():
    grid = Grid(((2, 2), (2, 2), (2, 2)), "apart")
    distance = torch.cdist(grid.places(), grid.places())
    same = grid.view_numbers()[:, None] == grid.view_numbers()[None]
    assert float(distance[same].max()) < 1 and float(distance[~same].min()) >= 10
    assert grid.coordinates().shape == (12, 2)


def test_unmasked_tokens_keep_their_view_and_time():
    whole = Grid(((1, 2),) * 3, "frames")
    left = PartialGrid.of(whole, (1, 4))
    assert left.frames == 3 and left.view_numbers().tolist() == [0, 2]
    close(left.places(), whole.places()[[1, 4]], 0)


@given(st.integers(1, 5000), st.integers(1, 100))
def test_frames_are_evenly_spaced_from_the_first_to_the_last(total, wanted):
    numbers = evenly(total, wanted)
    assert len(numbers) == min(total, wanted) and numbers[0] == 0
    if len(numbers) > 1:
        assert numbers[-1] == total - 1
        steps = [after - before for before, after in zip(numbers, numbers[1:], strict=False)]
        assert min(steps) >= 1 and max(steps) - min(steps) <= 1
