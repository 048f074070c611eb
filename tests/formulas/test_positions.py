import pytest
import torch

from covist.config import CovistConfig
from covist.formulas.positions import compress_positions, contiguous_positions, resolve_span


@pytest.mark.parametrize(
    "span, count, expected",
    [(None, 64, 576), ("rule", 64, 288), ("rule", 128, 576), ("rule", 192, 576), (432, 64, 432)],
)
def test_spans_of_the_paper(span, count, expected):
    assert resolve_span(CovistConfig(position_span=span), 576, count) == expected


def test_positions_shrink_proportionally_towards_the_start():
    positions = torch.tensor([35, 36, 37, 323, 610])
    assert compress_positions(positions, 35, 288, 576).tolist() == [35, 35, 36, 179, 322]
    assert torch.equal(compress_positions(positions, 35, 576, 576), positions)


def test_several_axes_shrink_alike():
    positions = torch.tensor([[5, 5, 9], [5, 7, 5]])
    assert compress_positions(positions, 5, 1, 2).tolist() == [[5, 5, 7], [5, 6, 5]]


def test_contiguous_numbering_starts_at_the_first_position():
    assert contiguous_positions(torch.tensor([7, 9, 20])).tolist() == [7, 8, 9]
    assert contiguous_positions(torch.tensor([[3, 4, 8], [3, 6, 4]])).tolist() == [[3, 3, 3], [4, 4, 4]]
