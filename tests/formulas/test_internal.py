import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import internal as reference

from covist.config import CovistConfig
from covist.formulas.internal import (
    attention_score,
    coordinate_signals,
    internal_score,
    internal_selection,
    spatial_subsample,
    value_score,
)
from covist.grid import Grid
from covist.state import VisualState
from formulas.inputs import array, close, generator, random_state

CONFIG = CovistConfig()
THETA = 10000.0 ** (-torch.arange(0, 16, 2) / 16)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_score_matches_the_reference(kv_heads):
    g = generator()
    queries, keys = torch.randn(4, 6, generator=g), torch.randn(kv_heads, 9, 6, generator=g)
    log_factor, gains = torch.rand(9, generator=g), torch.rand(4, generator=g) + 0.6
    expected = reference.attention_score(array(queries), array(keys), array(log_factor), array(gains))
    close(attention_score(queries, keys, log_factor, gains), expected)


def test_value_score_matches_the_reference():
    g = generator()
    text, visual = torch.randn(2, 5, 6, generator=g), torch.randn(2, 9, 6, generator=g)
    close(value_score(text, visual), reference.value_score(array(text), array(visual)))


def test_internal_score_is_the_mean_of_both():
    g = generator()
    attention, value = torch.rand(9, generator=g), torch.rand(9, generator=g)
    close(internal_score(attention, value), reference.score(array(attention), array(value)))


@given(st.integers(2, 40), st.integers(0, 1000), st.sampled_from([0, 3]), st.data())
def test_internal_selection_matches_the_reference(size, seed, axes, data):
    state = random_state(size, seed, axes=axes)
    count = data.draw(st.integers(1, size))
    score = torch.rand(size, generator=generator(seed))
    found = internal_selection(state, score, count, THETA, CONFIG)
    expected = reference.select(
        array(score),
        array(state.affinity),
        state.anchors.tolist(),
        array(state.positions),
        array(state.coordinates),
        count,
        array(THETA),
    )
    assert found.kept.tolist() == expected
    assert torch.equal(found.evidence, score)


def test_surviving_anchors_outlive_any_score():
    state = random_state(30)
    score = torch.where(state.anchors, 0.0, 1.0)
    kept = internal_selection(state, score, 10, THETA, CONFIG).kept
    assert set(state.anchors.nonzero()[:, 0].tolist()) <= set(kept.tolist())


def test_equal_scores_keep_the_first_tokens():
    state = random_state(20).replace(anchors=torch.zeros(20, dtype=torch.bool))
    plain = CONFIG.replace(coordinate_quota=0.0, spatial_quota=0.0, reserve=0.0)
    assert internal_selection(state, torch.ones(20), 6, THETA, plain).kept.tolist() == [0, 1, 2, 3, 4, 5]


def test_every_cell_of_the_image_keeps_a_token():
    """A quota of four cells: each quarter of the image survives although one quarter has all the score."""
    state = random_state(40).replace(anchors=torch.zeros(40, dtype=torch.bool))
    x, y = state.coordinates.unbind(-1)
    score = torch.where((x < 0.5) & (y < 0.5), 1.0, 0.1)
    plain = CONFIG.replace(coordinate_quota=0.0, spatial_quota=0.5, reserve=0.0)
    x, y = state.coordinates[internal_selection(state, score, 8, THETA, plain).kept].unbind(-1)
    assert len({(a, b) for a, b in zip((x >= 0.5).tolist(), (y >= 0.5).tolist(), strict=True)}) == 4


def test_a_cell_with_an_anchor_gives_no_second_token():
    """Four places, four cells: the anchor's own quarter has the best scores, yet the other quarters come first."""
    state = random_state(40)
    x, y = state.coordinates.unbind(-1)
    in_first_quarter = (x < 0.5) & (y < 0.5)
    anchors = torch.zeros(40, dtype=torch.bool)
    anchors[in_first_quarter.nonzero()[0]] = True
    plain = CONFIG.replace(coordinate_quota=0.0, spatial_quota=1.0, reserve=0.0)
    score = in_first_quarter.float() - 0.5 * anchors.float()
    kept = internal_selection(state.replace(anchors=anchors), score, 4, THETA, plain).kept
    assert int(in_first_quarter[kept].sum()) == 1


def test_coordinate_rules_differ():
    state, score = random_state(40), torch.zeros(40)
    plain = CONFIG.replace(coordinate_quota=1.0, spatial_quota=0.0, reserve=0.0)
    rope = internal_selection(state, score, 10, THETA, plain).kept
    grid = internal_selection(state, score, 10, THETA, plain.replace(coordinate_rule="grid")).kept
    assert rope.tolist() != grid.tolist()


def test_mirrored_places_have_the_same_coordinate_signals():
    """Every frequency counts on every axis, so exchanging row and column changes nothing, not even by rounding."""
    along = torch.arange(12) + 15
    positions = torch.stack([torch.full((144,), 15), along.repeat_interleave(12), along.repeat(12)], dim=-1)
    state = VisualState.initial(torch.zeros(144, 4), positions, None, Grid(((12, 12),)))
    for signal in coordinate_signals(state, THETA, CONFIG):
        assert torch.equal(signal.view(12, 12), signal.view(12, 12).T)
        assert signal.unique().numel() > 70


@given(st.integers(1, 40), st.integers(0, 1000), st.data())
def test_spatial_subsampling_matches_the_reference(size, seed, data):
    state = random_state(max(size, 2), seed)
    count = data.draw(st.integers(1, state.count))
    found = spatial_subsample(state, count, CONFIG)
    assert found.kept.tolist() == reference.subsample(state.count, array(state.affinity), count)
    assert found.evidence.unique().numel() == 1


@pytest.mark.parametrize("count", [0, 7])
def test_impossible_counts_are_refused(count):
    state = random_state(6)
    with pytest.raises(ValueError, match=f"internal_selection: count must be between 1 and 6 .*got {count}"):
        internal_selection(state, torch.ones(6), count, THETA, CONFIG)
    with pytest.raises(ValueError, match="spatial_subsample: count must be between 1 and 6"):
        spatial_subsample(state, count, CONFIG)


def test_bad_scores_are_refused():
    state = random_state(6)
    broken = internal_score(torch.rand(6), value_score(torch.full((2, 3, 4), torch.nan), torch.rand(2, 6, 4)))
    with pytest.raises(ValueError, match="internal_selection: score contains NaN"):
        internal_selection(state, broken, 3, THETA, CONFIG)
    with pytest.raises(ValueError, match="internal_selection: score contains NaN"):
        internal_selection(state, torch.tensor([0.1, torch.nan, 0, 0, 0, 0]), 3, THETA, CONFIG)
    with pytest.raises(ValueError, match=r"score must have shape \[6\]"):
        internal_selection(state, torch.ones(5), 3, THETA, CONFIG)
