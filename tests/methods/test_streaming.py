"""The state of a stream against its literal version, and what it promises however long the stream is."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.stream import Stream as LiteralStream

from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_coverage
from covist.methods.streaming import EMBEDDING, HIDDEN, StreamState, shortest_pair

SHAPE, CELLS = (2, 3), 6


def moment(rng: np.random.Generator) -> StreamState:
    """A frame of random contents; those of its decoder layer 1 are the embeddings again."""
    hidden, embedding = (torch.from_numpy(rng.normal(size=(CELLS, width))).float() for width in (8, 5))
    places = torch.arange(CELLS)
    return StreamState({HIDDEN: hidden, EMBEDDING: embedding, 1: embedding.clone()}, places, places, (1,), SHAPE)


def after(frames: int, budget: int, moments: int, half_life: float = 4.0, seed: int = 0) -> StreamState:
    rng = np.random.default_rng(seed)
    state = moment(rng).reduced(budget, half_life)
    for _ in range(frames - 1):
        state = state.followed_by(moment(rng)).within(moments).reduced(budget, half_life)
    return state


@pytest.mark.parametrize(
    ("budget", "moments", "half_life"), [(10, 4, 2.0), (7, 3, math.inf), (100, 3, 4.0), (5, 5, 1.0)]
)
def test_it_holds_what_the_literal_version_holds(budget, moments, half_life):
    literal, rng, state = LiteralStream(budget, moments, half_life), np.random.default_rng(5), None
    for _ in range(12):
        frame = moment(rng)
        literal.add(frame.contents[HIDDEN].numpy(), frame.contents[EMBEDDING].numpy())
        state = frame if state is None else state.followed_by(frame).within(moments)
        state = state.reduced(budget, half_life)
        assert list(state.lengths) == literal.lengths
        assert [divmod(home, CELLS) for home in state.home.tolist()] == [one.home for one in literal.held]
        owned = [set(map(tuple, (state.owner == number).nonzero().tolist())) for number in range(state.count)]
        assert [{divmod(*place, CELLS) for place in own} for own in owned] == [one.places for one in literal.held]
        for name, own in ((HIDDEN, "hidden"), (EMBEDDING, "embedding"), (1, "embedding")):
            expected = np.stack([getattr(one, own) for one in literal.held])
            np.testing.assert_allclose(state.contents[name].numpy(), expected, atol=1e-5)


@settings(max_examples=15)
@given(frames=st.integers(1, 20), budget=st.integers(4, 30), moments=st.integers(1, 8), seed=st.integers(0, 5))
def test_nothing_but_the_counter_grows(frames, budget, moments, seed):
    state = after(frames, budget, moments, seed=seed)
    shown = min(frames, moments)
    assert sum(state.lengths) == frames and len(state.lengths) == shown
    assert state.count <= budget and state.grid.size == len(state.owner) == shown * CELLS
    assert torch.equal(state.owner[state.home], torch.arange(state.count))  # everybody represents his own place
    assert state.weights.min() >= 1 and state.weights.sum() == shown * CELLS
    assert bool((state.home.diff() > 0).all())


def test_what_fits_is_held_as_it_came():
    rng = np.random.default_rng(0)
    frames = [moment(rng) for _ in range(4)]
    state = frames[0]
    for frame in frames[1:]:
        state = state.followed_by(frame).within(4).reduced(4 * CELLS, 1.0)
    for name in state.contents:
        assert torch.equal(state.contents[name], torch.cat([frame.contents[name] for frame in frames]))
    assert torch.equal(state.owner, torch.arange(4 * CELLS))


def test_copies_count_as_one_token_of_their_number():
    features, sizes = torch.randn(7, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 4, 2, 1, 9, 1, 3])
    whole = ContentCoverage.of(features.repeat_interleave(sizes, dim=0))
    short = ContentCoverage.of(features, sizes=sizes.float())
    torch.testing.assert_close(whole.spread, short.spread)
    first = sizes.cumsum(0) - sizes  # of the copies of each
    torch.testing.assert_close(whole.affinity[first][:, first], short.affinity)
    torch.testing.assert_close(whole.omega[first] * sizes, short.omega)
    kept = greedy_coverage(short.affinity, short.omega, first[:0], 3).nonzero()[:, 0]
    assert greedy_coverage(whole.affinity, whole.omega, first[:0], 3).nonzero()[:, 0].tolist() == first[kept].tolist()


def test_a_moment_is_about_as_long_as_a_share_of_its_age():
    lengths = []
    for _ in range(10_000):
        lengths.append(1)
        if len(lengths) > 16:
            first = shortest_pair(lengths)
            lengths[first : first + 2] = [lengths[first] + lengths[first + 1]]
    ages = [sum(lengths[place:]) - length / 2 for place, length in enumerate(lengths)]
    shares = [length / age for length, age in zip(lengths, ages, strict=True) if age > 10]
    assert lengths[-3:] == [1, 1, 1] and len(lengths) == 16 and sum(lengths) == 10_000
    assert max(shares) < 6 * min(shares)


def test_old_evidence_gives_way_to_new():
    """The same stream with a shorter half-life holds more of its last moments, and less of its first."""
    kept = [after(8, 12, 8, half_life).home // CELLS for half_life in (math.inf, 1.0)]
    assert (kept[1] >= 4).sum() > (kept[0] >= 4).sum()
