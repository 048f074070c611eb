"""Rotary embeddings of every layout, against complex numbers."""

import cmath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.formulas.attention import head_gains, projection_energy
from covist.formulas.rotary import in_halves, interleaved, rotate
from formulas.inputs import close, generator

THETA = torch.tensor([1.0, 0.3, 0.05])
PAIRS = {"halves": [(0, 3), (1, 4), (2, 5)], "neighbours": [(0, 1), (2, 3), (4, 5)]}


def angles_for(pairing, position):
    """Angles [6] in the layout that the pairing needs."""
    halves = torch.cat([THETA, THETA]) * position
    return halves if pairing == "halves" else interleaved(halves)


def by_complex_numbers(state, pairing, position):
    result = [float(value) for value in state]
    for (first, second), theta in zip(PAIRS[pairing], THETA.tolist(), strict=True):
        turned = complex(result[first], result[second]) * cmath.exp(1j * position * theta)
        result[first], result[second] = turned.real, turned.imag
    return result


@pytest.mark.parametrize("pairing", PAIRS)
@given(position=st.integers(0, 500), passing=st.sampled_from([0, 2, 4]), seed=st.integers(0, 20))
def test_pairs_turn_and_the_rest_passes_through(pairing, position, passing, seed):
    state = torch.randn(6 + passing, generator=generator(seed))
    angles = angles_for(pairing, position)
    found = rotate(state, angles.cos(), angles.sin(), pairing)
    close(found[:6], by_complex_numbers(state[:6], pairing, position), 1e-4)
    assert torch.equal(found[6:], state[6:])


@pytest.mark.parametrize("pairing", PAIRS)
@given(first=st.integers(0, 200), second=st.integers(0, 200), shift=st.integers(0, 200))
def test_products_depend_on_the_distance_alone(pairing, first, second, shift):
    query, key = torch.randn(2, 8, generator=generator())

    def product(one, other):
        states = [
            rotate(state, angles_for(pairing, place).cos(), angles_for(pairing, place).sin(), pairing)
            for state, place in ((query, one), (key, other))
        ]
        return float(states[0] @ states[1])

    assert product(first, second) == pytest.approx(product(first + shift, second + shift), abs=1e-3)


@pytest.mark.parametrize("pairing", PAIRS)
def test_values_in_halves_put_pairs_half_a_head_apart(pairing):
    ordered = in_halves(torch.arange(10), 6, pairing).tolist()
    pairs = list(zip(ordered[:5], ordered[5:], strict=True))
    assert pairs == [*PAIRS[pairing], (6, 8), (7, 9)]
    assert in_halves(torch.arange(6), 6, "halves").tolist() == list(range(6))


def test_dimensions_that_do_not_turn_count_as_frequency_zero():
    """The more a head favours dimensions that pass through, the lower its frequency and its gain."""
    norms = torch.ones(2, 8)
    norms[1, 4:] = 5.0
    energy = projection_energy(in_halves(norms, 4, "halves"), in_halves(norms, 4, "halves"))
    gains = head_gains([energy], [torch.tensor([1.0, 0.1, 0.0, 0.0])])
    close(gains[0], [1.4, 0.6], 1e-6)


def test_layers_without_rotary_have_unit_gains_and_do_not_stretch_the_others():
    energies = list(torch.rand(3, 4, 3, generator=generator()))
    expected = head_gains(energies, [THETA] * len(energies))
    found = head_gains([energies[0], None, energies[1], energies[2]], [THETA] * 4)
    assert torch.equal(found[[0, 2, 3]], expected) and torch.equal(found[1], torch.ones(4))
    with pytest.raises(ValueError, match="no layer has rotary positions"):
        head_gains([None], [THETA])
