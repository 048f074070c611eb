"""CoViST-Max against its literal version, and what it promises."""

import gc
import pickle
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import reference.covist_max as literal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.images import film, image

from covist.errors import CovistError
from covist.formulas import greedy
from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_coverage
from covist.grid import Grid
from covist.methods.covist_max import CovistMax, represent
from covist.methods.create import create_method
from covist.state import VisualState


def film_of(shape, seed):
    """A video of (frames, rows, columns), in which about half of the tokens repeat the frame before."""
    generator = torch.Generator().manual_seed(seed)
    frames, places = shape[0], shape[1] * shape[2]
    tokens = torch.randn(frames, places, 16, generator=generator)
    noise = 0.2 * torch.randn(frames, places, 16, generator=generator)
    stays = torch.rand(frames, places, 1, generator=generator) < 0.5
    for number in range(1, frames):
        tokens[number] = torch.where(stays[number], tokens[number - 1], tokens[number])
    return film(tokens + noise, shape=shape[1:])


@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
@pytest.mark.parametrize("count", [1, 2, 7, 20, 34])
def test_it_keeps_weighs_and_merges_as_the_literal_version_does(count, class_token):
    assert_literal(image(seed=3, class_token=class_token), count)


@pytest.mark.parametrize("count", [1, 2, 7, 20, 35])
def test_in_a_video_time_counts_as_the_literal_version_says(count):
    assert_literal(film_of((4, 3, 3), seed=3), count, frames=4)


def assert_literal(context, count, frames=1):
    s = literal.affinities(context.signals.hidden, frames)
    omega = literal.weights(s, frames)
    kept = literal.order(s, omega, count)
    outcome = CovistMax().begin(context, count)
    state = outcome.state
    assert state.indices.tolist() == sorted(kept)
    for place, index in enumerate(state.indices.tolist()):
        members = literal.groups(s, kept)[index]
        assert state.weights[place] == len(members)
        assert sorted((outcome.assignment == place).nonzero()[:, 0].tolist()) == sorted(members)
        expected = literal.content(context.signals.embeddings, members)
        torch.testing.assert_close(state.features[place].double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        outcome.maps["distinctiveness"].double(), torch.tensor(omega).double(), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("made", [image, partial(film_of, (4, 3, 3))], ids=["image", "video"])
def test_smaller_counts_keep_some_of_what_larger_ones_keep(made):
    context, method = made(seed=5), CovistMax()
    kept = [set(method.begin(context, count).state.indices.tolist()) for count in range(1, context.grid.size)]
    assert all(fewer < more for fewer, more in zip(kept, kept[1:], strict=False))


@settings(max_examples=25)  # the literal version is slow
@given(seed=st.integers(0, 20), level=st.floats(0, 1), least=st.integers(1, 34), more=st.integers(0, 33))
def test_the_count_for_a_level_is_the_smallest_that_reaches_it(seed, level, least, more):
    context, most = image(seed=seed), min(least + more, 34)
    s = literal.affinities(context.signals.hidden)
    omega = literal.weights(s)
    order = literal.order(s, omega, most)
    reached = (count for count in range(least, most) if literal.coverage(s, omega, order[:count]) >= level)
    count = CovistMax().count_for(context, level, least, most)
    assert count == next(reached, most)
    assert CovistMax().begin(context, count).state.indices.tolist() == sorted(order[:count])


@given(seed=st.integers(0, 20), count=st.integers(1, 36))
def test_every_token_counts_once(seed, count):
    context = image(seed=seed)
    outcome = CovistMax().begin(context, min(count, context.grid.size))
    assert outcome.state.weights.sum() == context.grid.size
    assert outcome.state.weights.min() >= 1


def test_a_wide_ground_weighs_no_more_than_a_few_small_things():
    kinds = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    kind = torch.tensor([0] * 96 + [1, 2, 3, 4])
    inputs = ContentCoverage.of(kinds[kind])
    assert inputs.omega[:96].sum() < 4 * inputs.omega[96]  # 96 times as many tokens
    chosen = greedy_coverage(inputs.affinity, inputs.omega, torch.empty(0, dtype=torch.long), 5)
    assert kind[chosen].tolist() == [0, 1, 2, 3, 4]


@given(scale=st.floats(0.01, 100))
def test_the_scale_of_the_features_does_not_matter(scale):
    hidden = torch.randn(30, 16, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        ContentCoverage.of(scale * hidden).omega, ContentCoverage.of(hidden).omega, rtol=1e-4, atol=1e-7
    )


def test_rounding_is_not_taken_for_a_difference():
    inputs = ContentCoverage.of(torch.ones(16, 8) * torch.linspace(1, 3, 16)[:, None])
    torch.testing.assert_close(inputs.omega, torch.full((16,), 1 / 16), rtol=0.03, atol=0)
    assert inputs.affinity.min() > 0.97


def test_companions_move_with_the_features():
    context = image(seed=2)
    state = context.initial_state()
    both = state.replace(companions={3: state.features.clone()})
    kept = torch.tensor([0, 5, 9])
    assignment = ContentCoverage.of(context.signals.hidden).affinity[:, kept].argmax(1)
    (reduced,) = represent([both], kept[None], assignment[None])
    assert isinstance(reduced, VisualState) and torch.equal(reduced.companions[3], reduced.features)


@pytest.mark.parametrize("seed", range(3))
def test_the_count_of_a_level_is_the_smallest_that_reaches_it(seed):
    tokens, method = image(seed=seed).grid.size, CovistMax()
    outcomes = [method.begin(image(seed=seed), count) for count in range(1, tokens + 1)]
    for level in (0.3, 0.6, 0.8, 0.9, 0.99, 1.0):
        expected = next((count for count, one in enumerate(outcomes, 1) if one.coverage >= level), tokens)
        context = image(seed=seed)
        assert method.count_for(context, level, 1, tokens) == expected
        assert torch.equal(method.begin(context, expected).state.indices, outcomes[expected - 1].state.indices)


def test_bounds_of_a_count_are_kept():
    method = CovistMax()
    assert method.count_for(image(seed=1), 0.01, 5, 9) == 5
    assert method.count_for(image(seed=1), 1.0, 5, 9) == 9


def test_cached_image_data_is_dropped_with_its_image_and_not_pickled():
    method, context = CovistMax(), image()
    method.enter(context, context.initial_state(), 5)
    assert len(method._coverages) == 1 and not pickle.loads(pickle.dumps(method))._coverages
    del context
    gc.collect()
    assert not method._coverages


# -- videos ------------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 20), count=st.integers(1, 36))
def test_every_token_of_a_video_counts_once(seed, count):
    outcome = CovistMax().begin(film_of((4, 3, 3), seed), count)
    assert outcome.state.count == count
    assert outcome.state.weights.sum() == 36 and outcome.state.weights.min() >= 1


def test_a_video_of_one_frame_is_an_image():
    context = film_of((1, 4, 5), seed=1)
    plain = replace(context, signals=replace(context.signals, grid=Grid(((4, 5),))))
    ours, theirs = (CovistMax().begin(one, 6).state for one in (context, plain))
    for name in ("features", "indices", "weights"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_in_a_still_video_the_first_and_the_last_frame_weigh_most():
    still = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0)).expand(8, 6, 16)
    by_frame = ContentCoverage.of(still.flatten(0, 1), frames=8).omega.unflatten(0, (8, 6)).sum(1)
    torch.testing.assert_close(by_frame, by_frame.flip(0))
    assert by_frame[0] > 2 * by_frame[1:-1].max()


def test_what_happens_for_a_moment_weighs_more_than_what_stays():
    kinds = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    tokens = kinds[:2].expand(8, 2, 16).clone()
    tokens[4, 1] = kinds[2]
    omega = ContentCoverage.of(tokens.flatten(0, 1), frames=8).omega.unflatten(0, (8, 2))
    assert omega[4, 1] > 3 * omega[4, 0]
    assert omega[3, 1] > omega[2, 1] and omega[5, 1] > omega[6, 1]  # the frames beside it, which it does not repeat


def test_representatives_stand_for_what_is_near_in_time():
    kinds = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    outcome = CovistMax().begin(film(kinds.expand(8, 2, 16).clone()), 4)
    times, kept = torch.arange(16) // 2, outcome.state.indices // 2
    farthest = (times - kept[outcome.assignment]).abs().max()
    assert farthest <= 4 and {*kept.tolist()} >= {0, 7}


def test_a_video_with_different_places_in_its_frames_is_compressed_as_an_image():
    context = film_of((3, 2, 2), seed=2)
    visible = torch.ones(12, dtype=torch.bool)
    visible[5] = False
    visibly = replace(context, signals=context.signals.restricted(visible), positions=context.positions[visible])
    s = literal.affinities(context.signals.hidden[visible])
    assert CovistMax().begin(visibly, 4).state.indices.tolist() == sorted(literal.order(s, literal.weights(s), 4))


# -- settings for engines that offer less ------------------------------------------------------------------------------


def test_it_can_compare_what_the_decoder_receives():
    context, other = image(seed=3), create_method("covist-max:features=embeddings")
    s = literal.affinities(context.signals.embeddings)
    kept = literal.order(s, literal.weights(s), 7)
    assert other.begin(context, 7).state.indices.tolist() == sorted(kept)
    assert other.begin(context, 7).state.indices.tolist() != CovistMax().begin(context, 7).state.indices.tolist()
    assert other.needs == ("embeddings",) and CovistMax().needs == ("encoder-features",)


def test_without_weights_the_same_tokens_stay_and_attention_is_left_alone():
    context, decoder = image(seed=3), SimpleNamespace(layers=2, heads=3)
    without = create_method("covist-max:weights=off")
    assert without.attention_rule(decoder) is None and CovistMax().attention_rule(decoder).weights
    ours, theirs = without.begin(context, 7).state, CovistMax().begin(context, 7).state
    assert torch.equal(ours.indices, theirs.indices) and torch.equal(ours.features, theirs.features)


@pytest.mark.parametrize("settings", ["features=pixels", "weights=2", "weights=heavy"])
def test_other_values_of_settings_are_refused(settings):
    with pytest.raises(CovistError, match=settings.partition("=")[0]):
        create_method(f"covist-max:{settings}")


@pytest.mark.parametrize("features", ["encoder", "embeddings"])
@pytest.mark.parametrize("count", [1, 7, 20])
def test_images_that_are_reduced_together_become_what_each_becomes_alone(features, count, monkeypatch):
    monkeypatch.setattr(greedy, "DENSE", True)
    contexts, method = [image(seed=seed) for seed in range(4)], CovistMax(features=features)
    for context in contexts:
        context.signals.companions[2] = context.signals.embeddings + 1
    assert method.images_at_once(contexts[0].grid.size, torch.device("cpu")) >= 4
    for together, context in zip(method.begin_together(contexts, count), contexts, strict=True):
        alone = method.begin(context, count)
        for name in ("indices", "positions", "weights", "anchors"):
            assert torch.equal(getattr(together.state, name), getattr(alone.state, name)), name
        assert together.state.grid is context.grid and torch.equal(together.assignment, alone.assignment)
        torch.testing.assert_close(together.state.features, alone.state.features)
        torch.testing.assert_close(together.state.companions, alone.state.companions)
        torch.testing.assert_close(together.coverage, alone.coverage)


def test_a_large_image_is_reduced_alone(monkeypatch):
    monkeypatch.setattr(greedy, "DENSE", True)
    assert CovistMax().images_at_once(16_384, torch.device("cpu")) == 1
