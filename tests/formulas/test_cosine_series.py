"""The series that stands in for the distance factor, and its stated error."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import attention as reference

from covist.formulas.attention import DistanceTable
from covist.formulas.cosine_series import GRID_SIDE, CosineSeries, error_bound, fit_series
from formulas.inputs import array

THETA = 10000.0 ** (-torch.arange(0, 128, 2) / 128)  # LLaVA-1.5
AXES = [0] * 16 + [1] * 24 + [2] * 24  # Qwen2.5-VL
TABLE, SEVERAL = DistanceTable(THETA), DistanceTable(THETA, AXES)
FITTED = {terms: fit_series(TABLE, terms, reach=1000) for terms in (0, 1, 3, 7)}
BOUNDS = {terms: error_bound(series, TABLE, reach=1000) for terms, series in FITTED.items()}
PLANAR = fit_series(SEVERAL, 3, reach=1000)
PLANAR_BOUND = error_bound(PLANAR, SEVERAL, reach=1000)


@given(st.sampled_from(sorted(FITTED)), st.integers(0, 1000))
def test_the_error_stays_within_the_stated_bound(terms, distance):
    exact = math.log(2 - reference.distance_factor(distance, 0, array(THETA)))
    assert abs(float(FITTED[terms](torch.tensor([distance]))) - exact) <= BOUNDS[terms] + 1e-9


def test_the_bound_is_attained():
    distances = torch.arange(1001)
    exact = TABLE.log_factor(distances, torch.tensor([0]))[:, 0]
    worst = (FITTED[3](distances[:, None]) - exact).abs().max()
    assert float(worst) == pytest.approx(BOUNDS[3], abs=1e-6)


def test_the_bound_of_the_documentation_holds():
    series = fit_series(TABLE, 3)
    errors = (series(torch.arange(4097)[:, None]) - TABLE.log_factor(torch.arange(4097), torch.tensor([0]))[:, 0]).abs()
    assert error_bound(series, TABLE) < 0.41
    assert float(errors[8:].max()) < 0.23 and float(errors[64:].max()) < 0.17  # the rest are neighbours


def test_more_terms_follow_more_closely():
    distances = torch.arange(1001)
    exact = TABLE.log_factor(distances, torch.tensor([0]))[:, 0]
    squares = [float((FITTED[terms](distances[:, None]) - exact).square().mean()) for terms in sorted(FITTED)]
    assert squares == sorted(squares, reverse=True)


def test_a_factor_that_is_a_cosine_is_found_almost_exactly():
    """log(2 - cos) of a single slow wave is that wave and weaker overtones."""
    table = DistanceTable(torch.tensor([0.01]))
    assert error_bound(fit_series(table, 3, reach=2000), table, reach=2000) < 0.04


def test_the_fit_depends_on_its_arguments_only():
    again = fit_series(DistanceTable(THETA), 3, reach=1000)
    assert torch.equal(again.frequencies, FITTED[3].frequencies)
    assert torch.equal(again.amplitudes, FITTED[3].amplitudes)


@given(st.integers(0, GRID_SIDE - 1), st.integers(0, GRID_SIDE - 1), st.integers(0, 1000))
def test_several_axes_stay_within_the_bound_of_an_image_and_the_text_after_it(row, column, text):
    query = [0, 0, 0] if text <= max(row, column) else [text] * 3  # an earlier text position is inside the image
    exact = math.log(2 - reference.distance_factor(query, [0, row, column], array(THETA), AXES))
    distance = (torch.tensor(query) - torch.tensor([0, row, column])).abs()
    assert abs(float(PLANAR(distance)) - exact) <= PLANAR_BOUND + 1e-6


def test_regular_samples_do_not_fool_the_fit():
    """A wave that is right at every odd distance and wrong at every even one explains nothing."""
    assert PLANAR_BOUND < 0.35


def test_without_a_factor_the_series_is_zero():
    assert torch.equal(CosineSeries.zero()(torch.tensor([[3], [70]])), torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("arguments, message", [({"terms": -1}, "terms must not"), ({"terms": 3, "reach": 0}, "reach")])
def test_impossible_fits_are_refused(arguments, message):
    with pytest.raises(ValueError, match=f"fit_series: {message}"):
        fit_series(TABLE, **arguments)
