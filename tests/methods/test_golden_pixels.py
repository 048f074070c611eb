"""PixelPrune's choice against the authors' code and, token by token, against the description."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.pixels import pixelprune
from support.golden import named_cases

import covist
from covist.contract.views import PixelView
from covist.errors import CovistError
from covist.methods.published.pixelprune import DISTANCES, surprise

THRESHOLDS = {"max": 0.05, "mae": 0.02, "rmse": 0.025}
PREDICTED = [case for case in named_cases("pixelprune") if case.name.endswith(("_exact", "_anchored"))]
"""The cases of the rule that is implemented; others are of variants."""


def kept(cells, **options):
    """Tokens that enter the tower, numbered frame by frame."""
    scores = covist.create_method("pixelprune", **options).rate_patches(PixelView(cells, in_range=True))
    return (scores > 0).flatten().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("case", PREDICTED, ids=str)
def test_the_authors_code_keeps_the_same_tokens(case):
    options = {}
    if not case.name.endswith("_exact"):
        distance = case.name.split("_")[1]
        options = {"distance": distance, "threshold": THRESHOLDS[distance]}
    assert kept(case["merged"][None], **options) == case["out_kept"].tolist()


def cells(frames, rows, columns, levels, seed):
    """Tokens of few values with small differences, so that many resemble each other but not all, away from ties."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 3, (frames, rows, columns, 1)) / 4
    return (coarse + generator.integers(0, levels, (frames, rows, columns, 4)) / 64).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    distance=st.sampled_from(list(DISTANCES)),
    threshold=st.sampled_from([0.0, 0.021, 0.04]),
    levels=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_diagonals_at_once_give_what_one_token_after_another_gives(shape, distance, threshold, levels, seed):
    shown = cells(*shape, levels, seed)
    expected, distances = pixelprune(shown.astype(np.float64), threshold, distance)
    found = surprise(torch.from_numpy(shown), threshold, DISTANCES[distance])
    assert [tuple(place) for place in (found > threshold).nonzero().tolist()] == expected
    later = np.isfinite(distances)
    np.testing.assert_allclose(found.numpy()[later], distances[later], atol=1e-6)
    assert bool((found[:, 0, 0] == found.max()).all())  # the last to leave, if the budget is smaller


def test_what_does_not_change_is_encoded_once():
    frame = torch.rand(1, 4, 5, 12)
    assert kept(frame.expand(3, -1, -1, -1)) == [*range(20), 20, 40]  # and the first token of every frame


def test_differences_do_not_add_up_along_a_slope():
    """Every token differs from its neighbour by less than the threshold, but from the first one by more and more."""
    slope = torch.linspace(0, 0.9, 10)[None, None, :, None]  # steps of 0.1
    assert kept(slope, threshold=0.25) == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("options", "line"),
    [({"threshold": 1.5}, "threshold=1.5"), ({"threshold": "a"}, "threshold"), ({"distance": "l3"}, "l3")],
)
def test_impossible_settings_are_refused(options, line):
    with pytest.raises(CovistError, match=line):
        covist.create_method("pixelprune", **options)
