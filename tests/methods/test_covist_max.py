"""CoViST-Max against its literal version, and what it promises."""

import gc
import pickle
from types import SimpleNamespace

import pytest
import reference.covist_max as literal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.images import image

from covist.errors import CovistError
from covist.formulas import greedy
from covist.formulas.content import ContentCoverage
from covist.formulas.greedy import greedy_coverage
from covist.methods.covist_max import CovistMax, represent
from covist.methods.create import create_method
from covist.state import VisualState


@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
@pytest.mark.parametrize("count", [1, 2, 7, 20, 34])
def test_it_keeps_weighs_and_merges_as_the_literal_version_does(count, class_token):
    context = image(seed=3, class_token=class_token)
    s = literal.affinities(context.signals.hidden)
    omega = literal.weights(s)
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


def test_smaller_counts_keep_some_of_what_larger_ones_keep():
    context, method = image(seed=5), CovistMax()
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
