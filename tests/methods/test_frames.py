"""Dropping frames keeps whole frames, evenly spaced, and thins them out only if the budget asks for it."""

from types import SimpleNamespace

import pytest
import torch
from support.images import image

from covist.grid import Grid, PartialGrid
from covist.methods.frame_dropping import Frames


def kept(grid: Grid, count: int) -> list[int]:
    return Frames().select(SimpleNamespace(grid=grid, positions=torch.arange(grid.size)), count).tolist()


FILM = Grid(((2, 2),) * 7, "frames")


@pytest.mark.parametrize(
    ("count", "frames"), [(4, [0]), (8, [0, 6]), (12, [0, 3, 6]), (16, [0, 2, 4, 6]), (28, list(range(7)))]
)
def test_whole_frames_are_kept(count, frames):
    assert kept(FILM, count) == [4 * frame + place for frame in frames for place in range(4)]


@pytest.mark.parametrize("count", range(1, 29))
def test_the_budget_is_met_with_as_few_frames_as_hold_it(count):
    chosen = kept(FILM, count)
    assert len(set(chosen)) == count
    assert len({token // 4 for token in chosen}) == -(-count // 4)


def test_masked_tokens_are_made_up_for_by_other_frames():
    grid = PartialGrid.of(FILM, [0, 1, 4, 5, 6, 7, 24])  # two tokens of the first frame, one of the last
    assert kept(grid, 2) == [0, 1] and len(kept(grid, 4)) == 4


@pytest.mark.parametrize("views", [((5, 7),), ((3, 3), (6, 6))])
def test_an_image_is_a_video_of_one_frame(views):
    context = image(views)
    for count in (1, 7, 20):
        chosen = Frames().select(context, count)
        assert len(chosen.unique()) == count and chosen[0] == 0
