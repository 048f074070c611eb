import pytest
import torch
from formulas.inputs import array, close, generator
from reference import evidence as reference

from covist.grid import Grid

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
