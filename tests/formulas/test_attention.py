import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import attention as reference

from covist.formulas import attention
from covist.formulas.attention import DistanceTable, attention_bias, head_gains, log_contribution, projection_energy
from formulas.inputs import array, close, generator

THETA = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
AXES = [0, 0, 1, 1, 1, 2, 2, 2]


@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=4), st.lists(st.integers(0, 20_000), min_size=1, max_size=5)
)
def test_distance_factor_matches_the_reference(queries, keys):
    table = DistanceTable(THETA, size=64)
    found = table.log_factor(torch.tensor(queries), torch.tensor(keys))
    expected = [[math.log(2 - reference.distance_factor(q, k, array(THETA))) for k in keys] for q in queries]
    close(found, expected, 1e-6)


def test_each_frequency_is_evaluated_on_its_own_axis():
    g = generator()
    queries, keys = torch.randint(0, 900, (3, 3), generator=g), torch.randint(0, 900, (4, 3), generator=g)
    found = DistanceTable(THETA, AXES, size=8).log_factor(queries, keys)
    expected = [
        [math.log(2 - reference.distance_factor(q, k, array(THETA), AXES)) for k in array(keys)] for q in array(queries)
    ]
    close(found, expected, 1e-6)


def test_equal_components_on_all_axes_are_the_one_dimensional_factor():
    positions = torch.arange(7)
    several = DistanceTable(THETA, AXES).log_factor(positions[:, None].expand(-1, 3), positions[:, None].expand(-1, 3))
    close(several, array(DistanceTable(THETA).log_factor(positions, positions)), 1e-6)


def test_fractions_of_positions_are_taken_at_the_nearest_whole_distance():
    queries, keys = torch.tensor([7.0, 9.2]), torch.tensor([2.0, 4.7])
    found = DistanceTable(THETA).log_factor(queries, keys)
    assert torch.equal(found, DistanceTable(THETA).log_factor(torch.tensor([7, 9]), torch.tensor([2, 5])))


def test_the_table_grows_with_the_distances_and_is_symmetric():
    table = DistanceTable(THETA, size=4)
    near = table.log_factor(torch.tensor([3]), torch.tensor([1]))
    far = table.log_factor(torch.tensor([100_000]), torch.tensor([0]))
    assert float(far) == pytest.approx(math.log(2 - reference.distance_factor(100_000, 0, array(THETA))), abs=1e-6)
    assert torch.equal(table.log_factor(torch.tensor([1]), torch.tensor([3])), near)
    assert float(table.log_factor(torch.tensor([5]), torch.tensor([5]))) == pytest.approx(0, abs=1e-6)


def test_batches_of_positions_are_served_together():
    queries, keys = (
        torch.randint(0, 50, (2, 3), generator=generator()),
        torch.randint(0, 50, (2, 4), generator=generator()),
    )
    together = DistanceTable(THETA).log_factor(queries, keys)
    assert together.shape == (2, 3, 4)
    close(together[1], array(DistanceTable(THETA).log_factor(queries[1], keys[1])), 1e-7)


def test_a_known_limit_gives_the_same_factor():
    positions = torch.tensor([0, 9, 300])
    assert torch.equal(
        DistanceTable(THETA, size=2).log_factor(positions, positions, limit=300),
        DistanceTable(THETA).log_factor(positions, positions),
    )


@pytest.mark.parametrize("axes", [[0, 1], [0] * 9])
def test_one_axis_per_frequency_is_required(axes):
    with pytest.raises(ValueError, match="DistanceTable: axes must have shape"):
        DistanceTable(THETA, axes)


def test_bias_matches_the_reference():
    scale, weights = torch.tensor([0.6, 1.3]), torch.tensor([1.0, 2.5, 8.0])
    queries, keys = torch.tensor([40, 41]), torch.tensor([3, 17, 30])
    contribution = log_contribution(weights.log()[None], DistanceTable(THETA).log_factor(queries, keys))[None]
    found = attention_bias(scale, contribution, torch.zeros_like(contribution))
    expected = [
        [
            [
                reference.bias(float(g), float(m), int(q), int(k), array(THETA))
                for m, k in zip(weights, keys, strict=True)
            ]
            for q in queries
        ]
        for g in scale
    ]
    close(found, expected, 1e-5)


def projections(layers=3, heads=4, kv_heads=4, seed=0):
    g = generator(seed)
    queries = torch.randn(layers, heads, 16, 10, generator=g) * torch.rand(layers, heads, 16, 1, generator=g)
    keys = torch.randn(layers, kv_heads, 16, 10, generator=g) * torch.rand(layers, kv_heads, 16, 1, generator=g)
    return queries, keys


def gains(queries, keys, gain_range=(0.6, 1.4)):
    energies = [projection_energy(q.norm(dim=-1), k.norm(dim=-1)) for q, k in zip(queries, keys, strict=True)]
    return head_gains(energies, [THETA] * len(energies), gain_range)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_head_gains_match_the_reference(kv_heads):
    queries, keys = projections(kv_heads=kv_heads)
    close(gains(queries, keys), reference.head_gains(array(queries), array(keys), array(THETA)), 1e-5)


@given(st.integers(0, 1000), st.sampled_from([(0.6, 1.4), (0.5, 1.5), (0.7, 1.3)]))
def test_head_gains_fill_their_range(seed, gain_range):
    found = gains(*projections(seed=seed), gain_range)
    assert float(found.min()) == pytest.approx(gain_range[0], abs=1e-5)
    assert float(found.max()) == pytest.approx(gain_range[1], abs=1e-5)


@given(st.floats(1e-2, 1e2), st.floats(1e-2, 1e2))
def test_head_gains_do_not_depend_on_the_scale_of_the_projections(query_scale, key_scale):
    queries, keys = projections()
    close(gains(query_scale * queries, key_scale * keys), array(gains(queries, keys)), 1e-5)


def test_grouped_heads_gain_as_their_expanded_twin():
    queries, keys = projections(kv_heads=2)
    close(gains(queries, keys), array(gains(queries, keys.repeat_interleave(2, dim=1))), 1e-6)


def test_a_head_of_high_frequencies_gains_most():
    queries, keys = (torch.full((1, 2, 16, 1), 0.01) for _ in range(2))
    queries[0, 0, 0] = keys[0, 0, 0] = 1.0  # pair 0 rotates fastest
    queries[0, 1, 7] = keys[0, 1, 7] = 1.0  # pair 7 slowest
    close(gains(queries, keys), [[1.4, 0.6]], 1e-5)


def test_a_pruned_head_spoils_no_gain():
    queries, keys = projections()
    queries[1, 2] = 0
    found = gains(queries, keys)
    assert found.isfinite().all()
    assert float(found.min()) == pytest.approx(0.6, abs=1e-5) and float(found.max()) == pytest.approx(1.4, abs=1e-5)


def test_heads_must_be_a_multiple_of_kv_heads():
    with pytest.raises(ValueError, match="projection_energy: heads must be a multiple"):
        projection_energy(torch.ones(4, 8), torch.ones(3, 8))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("at_once", [1, 50, 10_000])
def test_mean_attention_is_the_same_in_parts(kv_heads, at_once, monkeypatch):
    g = generator()
    queries, keys = torch.randn(4, 9, 8, generator=g), torch.randn(kv_heads, 7, 8, generator=g)
    expected = torch.softmax(queries @ keys.repeat_interleave(4 // kv_heads, 0).mT / 8**0.5, -1).mean((0, 1))
    monkeypatch.setattr(attention, "PRODUCTS_AT_ONCE", at_once)
    close(attention.mean_attention(queries, keys), array(expected), 1e-6)
