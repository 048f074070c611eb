"""The study of videos: its method with no settings is covist-max."""

import pytest
import torch
from studies.films import FACTORS, FilmMax, register
from support.images import film

from covist.methods.covist_max import CovistMax
from covist.methods.create import create_method

TOKENS = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0))
TOKENS[1:3, :3] = TOKENS[0, :3]


@pytest.fixture(autouse=True)
def registered():
    """Here and not on import, which would leave its methods to other tests."""
    register()


def test_without_settings_it_is_covist_max():
    ours, theirs = (method.begin(film(TOKENS), 7).state for method in (FilmMax(), CovistMax()))
    assert torch.equal(ours.indices, theirs.indices) and torch.equal(ours.weights, theirs.weights)
    torch.testing.assert_close(ours.features, theirs.features)


def test_without_time_a_video_is_an_image():
    as_image = film(TOKENS.flatten(0, 1)[None])
    ours = FilmMax(time=0, factors="kernel").begin(film(TOKENS), 7).state
    assert torch.equal(ours.indices, CovistMax().begin(as_image, 7).state.indices)


@pytest.mark.parametrize("settings", [*(f"factors={name}" for name in FACTORS), "window=1", "equal=on", "time=budget"])
def test_every_configuration_meets_its_budget(settings):
    for count in (3, 7, 23):
        state = create_method(f"film-max:{settings},content=own").begin(film(TOKENS), count).state
        assert state.count == count and state.weights.sum() == 24


def test_runs_of_evs_weigh_the_frames_that_they_last():
    tokens = torch.randn(1, 2, 16, generator=torch.Generator().manual_seed(0)).expand(5, 2, 16).clone()
    tokens[3:, 1] = torch.randn(16, generator=torch.Generator().manual_seed(1))
    state = create_method("evs-runs:space=embeddings").begin(film(tokens), 3).state
    assert state.indices.tolist() == [0, 1, 7] and state.weights.tolist() == [5, 3, 2]
