"""Methods that merge tokens against literal references: which index, which content, which weight."""

import numpy as np
import pytest
import reference.mergers as literal
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.selectors import class_attention
from support.images import ENCODER_HEADS, image

from covist.methods.catalogue import describe
from covist.methods.create import create_method
from covist.methods.downsample import Downsample
from covist.methods.published.divprune import DivPrune
from covist.methods.published.prumerge import PruMerge, fit_grid, with_grid
from covist.methods.published.tome import ToMe, merges_per_round
from covist.methods.published.visionzip import VisionZip
from covist.methods.published.vispruner import VisPruner
from covist.methods.published.vscan import VScan
from covist.methods.registry import available_methods
from covist.methods.shared import layer_attention, received_attention

MERGERS = [
    name
    for name, method in available_methods().items()
    if method.writes_content and describe(name)["where"] != "inside" and name != "framefusion"  # which starts with more
]


def project(context, features):
    return context.signals.project(torch.from_numpy(np.asarray(features, dtype=np.float32)))


def assert_content(state, index, expected):
    place = state.indices.tolist().index(index)
    torch.testing.assert_close(state.features[place], torch.as_tensor(expected).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
@pytest.mark.parametrize("count", [4, 16, 19, 32])
def test_visionzip(count, class_token):
    context = image(seed=1, class_token=class_token)
    signals = context.signals
    hidden, own = signals.hidden.double().numpy(), signals.class_features
    keys = signals.keys.view(context.grid.size, ENCODER_HEADS, -1).double().numpy()
    dominant, merged = literal.visionzip(received_attention(signals).numpy(), keys, hidden, own, count)
    state = VisionZip().begin(context, count).state
    assert state.count == count
    for index in dominant:
        assert_content(state, index, signals.embeddings[index])
    for index, features in merged.items():
        assert_content(state, index, project(context, features))
    left = set(state.indices.tolist()) - set(dominant) - set(merged)
    assert len(left) == class_token
    for index in left:
        first_free = min(set(range(context.grid.size)) - set(dominant) - set(merged))
        assert index == first_free
        assert_content(state, index, project(context, own[0].numpy()))


@pytest.mark.parametrize("count", [1, 4, 12, 34])
def test_prumerge(count):
    context = image(seed=2)
    layer = context.signals.layers[3]  # the last one, not the one that feeds the projector
    keys = layer.keys[0].double().numpy()
    query, class_key = (states[0].double().numpy() for states in (layer.class_query, layer.class_key))
    attention = class_attention(query, class_key, keys, heads=1)
    state = PruMerge().begin(context, count).state
    chosen = sorted(range(len(keys)), key=lambda i: -attention[i])[: count - 1]
    merged, extra = literal.prumerge(attention, keys, context.signals.hidden.double().numpy(), chosen)
    for index, features in merged.items():
        assert_content(state, index, project(context, features))
    (extra_index,) = set(state.indices.tolist()) - set(chosen)
    assert extra_index == max(set(range(len(keys))) - set(chosen))
    assert_content(state, extra_index, project(context, extra))


def test_prumerge_plus_puts_a_grid_of_thirds_around_its_outliers():
    order = torch.arange(40).flip(0)
    assert with_grid(order, 4).tolist() == [
        39,
        38,
        37,
        36,
        *range(0, 36, 3),
    ]  # 40 / 4 = 10 tokens, of which a third is 3


@pytest.mark.parametrize(("budget", "step"), [(192, 4), (128, 6), (64, 12)])
def test_prumerge_plus_keeps_three_quarters_as_a_grid(budget, step):
    order = torch.randperm(576, generator=torch.Generator().manual_seed(budget))
    chosen, grid = set(fit_grid(order, budget - 1).tolist()), set(range(0, 575, step))
    assert grid < chosen and len(grid) == 3 * budget // 4
    others = [token for token in order.tolist() if token not in grid]
    assert chosen - grid == set(others[: budget - 1 - len(grid)])


@given(st.integers(2, 60).flatmap(lambda tokens: st.tuples(st.just(tokens), st.integers(0, tokens - 1))))
def test_prumerge_plus_keeps_any_count_of_distinct_tokens(sizes):
    tokens, count = sizes
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(count))
    assert len(set(fit_grid(order, count).tolist())) == count == len(fit_grid(order, count))


@pytest.mark.parametrize("count", [1, 5, 18, 34])
def test_tome(count):
    context = image(seed=3)
    outcome = ToMe().begin(context, count)
    expected = literal.tome(context.signals.embeddings.double().numpy(), count)
    assert outcome.state.indices.tolist() == sorted(expected)
    assert outcome.state.weights.tolist() == [expected[index][1] for index in sorted(expected)]
    for index, (content, _) in expected.items():
        assert_content(outcome.state, index, content)
    assert outcome.assignment.bincount(minlength=count).tolist() == outcome.state.weights.tolist()


@given(st.integers(2, 700).flatmap(lambda tokens: st.tuples(st.just(tokens), st.integers(1, tokens - 1))))
def test_tome_merges_the_same_number_in_every_round_up_to_half_of_the_tokens(sizes):
    tokens, count = sizes
    rounds = merges_per_round(tokens, count)
    left = tokens
    for merges in rounds:
        assert 1 <= merges <= left // 2
        left -= merges
    assert left == count
    if max(rounds) <= count:  # the cap never counts
        assert len(rounds) <= 24 and max(rounds) - min(rounds) <= 1


def test_tome_attention_is_proportional_to_size():
    context = image()
    rule = ToMe().attention_rule(context.decoder)
    assert rule.weights and rule.distances is None and rule.scale.unique().tolist() == [1.0]


@pytest.mark.parametrize("denser", [False, True])
@pytest.mark.parametrize("count", [1, 2, 9, 20, 34])
def test_restore_over_divprune(count, denser):
    context = image(seed=5)
    base = DivPrune().select(context, count // 2).tolist() if count > 1 else []
    state = create_method("restore-divprune", denser=denser).begin(context, count).state
    expected = literal.restore(context.signals.embeddings.double().numpy(), base, count, denser)
    assert state.indices.tolist() == sorted([*base, *expected])
    for index in base:
        assert_content(state, index, context.signals.embeddings[index])
        assert state.weights[state.indices.tolist().index(index)] == 1
    for index, (content, size) in expected.items():
        assert_content(state, index, content)
        assert state.weights[state.indices.tolist().index(index)] == size
    assert state.weights.sum() == context.grid.size  # so the mean size in layer 0 is N / K


def test_restore_compares_with_lower_density_by_default():
    states = [
        create_method("restore-divprune", denser=denser).begin(image(seed=5), 12).state for denser in (False, True)
    ]
    assert states[0].indices.tolist() != states[1].indices.tolist()


def test_restore_biases_all_keys_in_prefill_only_and_layer_zero_uniformly():
    rule = create_method("restore-holov").attention_rule(image().decoder)
    assert rule.distances is not None and rule.distance_keys == "all" and rule.mean_weights == {0}
    assert rule.while_decoding.distances is None and not rule.while_decoding.mean_weights
    assert rule.weights and rule.while_decoding.weights and rule.scale.unique().tolist() == [1.0]
    assert available_methods()["restore-holov"].default_positions == "keep"


def test_restore_uses_its_base():
    context = image(seed=5)
    half = VisPruner().select(context, 10)
    state = create_method("restore-vispruner").begin(context, 20).state
    assert torch.isin(half, state.indices).all()


@pytest.mark.parametrize("count", [2, 9, 20, 34])
def test_vscan_before_the_decoder(count):
    context = image(((6, 6),), seed=4)
    signals = context.signals
    shallow, deep = layer_attention(signals, signals.layers[0]), received_attention(signals)
    expected = literal.vscan(
        shallow.double().numpy(), deep.double().numpy(), signals.embeddings.double().numpy(), 6, 6, count
    )
    state = VScan().begin(context, count).state
    assert state.indices.tolist() == sorted(expected)
    for index, (mean, members) in expected.items():
        assert_content(state, index, mean)
        assert state.weights[state.indices.tolist().index(index)] == members


def test_downsample_averages_cells_before_the_projector():
    context = image(((6, 6),))
    state = Downsample().begin(context, 9).state  # cells of 2 x 2
    cells = context.signals.hidden.view(3, 2, 3, 2, -1).mean((1, 3)).flatten(0, 1)
    torch.testing.assert_close(state.features, context.signals.project(cells), atol=1e-5, rtol=1e-5)
    assert state.indices.tolist() == [7, 9, 11, 19, 21, 23, 31, 33, 35]
    assert state.weights.unique().tolist() == [4]


@pytest.mark.parametrize("views", [((5, 7),), ((3, 3), (2, 6))])
def test_downsample_counts_every_token_once(views):
    context = image(views)
    for count in range(2, context.grid.size):
        state = Downsample().begin(context, count).state
        assert state.count == count and state.weights.sum() == context.grid.size


@pytest.mark.parametrize("name", MERGERS)
@pytest.mark.parametrize("count", [1, 2, 9, 20, 34, 35])
@pytest.mark.parametrize("class_token", [True, False], ids=["class token", "no class token"])
def test_duplicates_and_odd_counts(name, count, class_token):
    state = create_method(name).begin(image(copies=7, class_token=class_token), count).state
    assert state.count == count == state.indices.unique().numel()
    assert state.features.isfinite().all()
