import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import ops as reference

from covist.formulas import ops
from formulas.inputs import close

numbers = st.lists(st.floats(0, 10, width=32), min_size=1, max_size=12)


@given(numbers)
def test_mass_norm_matches_the_reference(values):
    close(ops.mass_norm(torch.tensor(values, dtype=torch.float64)), reference.mass_norm(values), 1e-9)


def test_mass_norm_of_nothing_is_uniform():
    assert ops.mass_norm(torch.zeros(2, 4)).tolist() == [[0.25] * 4] * 2


@given(st.lists(st.integers(0, 1000).map(lambda i: i / 8), min_size=1, max_size=12))
def test_min_max_matches_the_reference(values):
    close(ops.min_max(torch.tensor(values, dtype=torch.float64)), reference.min_max(values), 1e-9)


def test_min_max_does_not_stretch_rounding_noise():
    noisy = torch.full((6,), 1 / 3) + 1e-8 * torch.arange(6)
    assert float(noisy.max()) > float(noisy.min())
    assert ops.min_max(noisy).tolist() == [0] * 6


@pytest.mark.parametrize("normalise", [ops.mass_norm, ops.min_max])
def test_nan_is_not_normalised_away(normalise):
    assert normalise(torch.tensor([0.2, torch.nan, 0.8])).isnan().all()


def test_unit_rows_keep_zero_rows_and_leave_float32():
    rows = ops.unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.bfloat16))
    assert rows.dtype == torch.float32
    close(rows, [[0.6, 0.8], [0.0, 0.0]], 1e-6)


@given(numbers)
def test_entropy_matches_the_reference(values):
    p = reference.mass_norm(values)
    assert float(ops.entropy(torch.tensor(p))) == pytest.approx(reference.entropy(p), abs=1e-9)


def test_departure_is_zero_for_uniform_and_one_for_a_peak():
    assert float(ops.departure_from_uniform(torch.full((5,), 0.2))) == pytest.approx(0, abs=1e-6)
    assert float(ops.departure_from_uniform(torch.tensor([0.0, 1.0, 0.0]))) == 1
    assert float(ops.departure_from_uniform(torch.ones(1))) == 0


@pytest.mark.parametrize("value, expected", [(0.5, 1), (1.5, 2), (2.5, 3), (2.4, 2), (-0.5, 0)])
def test_halves_round_up(value, expected):
    assert ops.round_half_up(value) == expected


def test_grouped_heads_are_shared_in_blocks():
    shared = ops.share_groups(torch.arange(2.0)[:, None], 6)[:, 0]
    assert shared.tolist() == [0, 0, 0, 1, 1, 1]
    assert math.isclose(float(ops.share_groups(torch.ones(3, 1), 3).sum()), 3)
