"""Reductions inside the decoder against literal references, and the schedules that bring them to a layer mean."""

import pytest
import reference.inside as literal
import torch
from reference.ops import ranking
from support.images import image, inside

from covist.methods.create import create_method
from covist.methods.inside import DropInside
from covist.methods.published.dart import Dart
from covist.methods.published.fastv import FastV
from covist.methods.published.ivcprune import IVCPrune
from covist.methods.published.pyramiddrop import PyramidDrop
from covist.methods.published.sparsevlm import SparseVLM, split_places
from covist.methods.published.sparsevlm_plus import SparseVLMPlus
from covist.methods.published.vscan import VScan
from covist.methods.registry import available_methods

INSIDE = [name for name, method in available_methods().items() if issubclass(method, DropInside)]


@pytest.fixture(params=[4, 2], ids=["multi-head", "grouped-query"])
def kv_heads(request):
    return request.param


def reduced(method, kv_heads, count, seed=0, depth=2, views=((5, 7),), copies=1):
    state, view = inside(image(views, seed), depth, method, seed, kv_heads, copies)
    outcome = method.reduce(state, view, count)
    assert outcome.state.count == count
    return state, view, outcome.state


@pytest.mark.parametrize("count", [1, 8, 34])
def test_fastv_follows_the_last_prompt_token_in_the_layer_before(kv_heads, count):
    _, view, state = reduced(FastV(), kv_heads, count)
    assert view.observed_layer == 1 and view.last_instruction_row != len(view.hidden) - 1
    score = literal.last_row_score(view, len(view.hidden) - 1)
    assert state.indices.tolist() == sorted(ranking(score)[:count])


@pytest.mark.parametrize("method", [PyramidDrop(), VScan()], ids=["pyramiddrop", "vscan"])
def test_the_last_prompt_token_ranks_in_the_next_layer(kv_heads, method):
    _, view, state = reduced(method, kv_heads, 9)
    assert view.observed_layer == view.depth == 2
    assert state.indices.tolist() == sorted(ranking(literal.last_row_score(view, len(view.hidden) - 1))[:9])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sparsevlm_keeps_by_raters_and_recycles_the_rest(kv_heads, seed):
    """Density looks at as many neighbours as there are clusters; with two, each other's nearest are equally dense."""
    method, tokens = SparseVLM(), 100
    count = 30
    before, view, state = reduced(method, kv_heads, count, seed, views=((10, 10),))
    kept, clusters = split_places(tokens, count)
    assert clusters == 3
    places, means = literal.recycle(before.features.double().numpy(), literal.sparsevlm_score(view), kept)
    assert len(means) == clusters and state.indices.tolist() == sorted([*places, *means])
    for index, mean in means.items():
        place = state.indices.tolist().index(index)
        torch.testing.assert_close(state.features[place], torch.from_numpy(mean).float(), atol=1e-5, rtol=1e-5)
    for index in places:
        assert torch.equal(state.features[state.indices.tolist().index(index)], before.features[index])


@pytest.mark.parametrize("tokens", [2, 10, 64, 300, 576])
def test_sparsevlm_counts_recycled_tokens(tokens):
    """The published counts leave them out; ours is their sum, by the published cluster rule where that has room."""
    for count in range(1, tokens):
        kept, clusters = split_places(tokens, count)
        assert kept >= 1 and clusters >= 0 and kept + clusters == count
        if count > 1:
            rule = int((int(0.3 * (tokens - kept)) + 1) / 10) + 1
            assert clusters == min(rule, count // 2)


@pytest.mark.parametrize("count", [3, 20])
def test_sparsevlm_plus_removes_the_rotation_and_the_weak_heads(kv_heads, count):
    _, view, state = reduced(SparseVLMPlus(), kv_heads, count)
    assert state.indices.tolist() == sorted(ranking(literal.sparsevlm_plus_score(view))[:count])


@pytest.mark.parametrize("quota", [1, 3])
def test_dart_takes_its_quota_from_every_pivot(kv_heads, quota):
    _, view, state = reduced(Dart(), kv_heads, 4 + 8 * quota, views=((6, 6),))
    assert state.indices.tolist() == literal.dart(view, quota)


def test_dart_keeps_132_tokens_where_the_authors_say_128():
    _, view, state = reduced(Dart(), 4, 132, views=((12, 12),))
    assert state.indices.tolist() == literal.dart(view, quota=128 // 8)


@pytest.mark.parametrize("count", [1, 7, 18, 34])
def test_ivc_prune_lets_coordinates_and_foreground_grow_together(kv_heads, count):
    before, view, state = reduced(IVCPrune(), kv_heads, count)
    assert state.indices.tolist() == literal.ivc(view, before.positions.tolist(), count)


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize("count", [1, 2, 5, 34])
def test_duplicates_and_odd_counts(name, count):
    reduced(create_method(name), 4, count, copies=7)


# -- schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "count"), [(192, 166), (128, 98), (64, 30)])
def test_fastv_solves_for_the_published_counts(budget, count):
    assert FastV().schedule(32, budget, 576).stages == ((0, 576), (2, count))


def test_pyramiddrop_reproduces_its_published_setting():
    assert PyramidDrop().schedule(32, 270, 576).stages == ((0, 576), (8, 288), (16, 144), (24, 72))


def test_pyramiddrop_drops_earlier_for_budgets_that_its_layers_cannot_reach():
    depths = [[depth for depth, _ in PyramidDrop().schedule(32, budget, 576).stages[1:]] for budget in (192, 128, 64)]
    assert depths == [[5, 14, 23], [3, 13, 22], [1, 11, 22]]


@pytest.mark.parametrize("name", ["sparsevlm", "sparsevlm-plus"])
def test_sparsevlm_keeps_the_proportions_of_its_published_lists(name):
    schedule = create_method(name).schedule(32, 192, 576)
    assert [depth for depth, _ in schedule.stages] == [0, 3, 7, 16]
    counts = [count for _, count in schedule.stages[1:]]
    assert counts[0] / counts[1] == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize(("layers", "cut"), [(32, 16), (40, 20), (8, 4), (3, 2)])
def test_ivc_prune_selects_in_the_middle_and_budgets_its_cache(layers, cut):
    """Prefill runs the first half on all tokens; the cache keeps layer 0 whole and its mean is the budget."""
    schedule = IVCPrune().schedule(layers, 300, 576)
    count = schedule.stages[1][1]
    assert schedule.tokens_per_layer == (576,) * cut + (count,) * (layers - cut)
    assert schedule.cached_tokens_per_layer == (576,) + (count,) * (layers - 1)
    assert schedule.cached_mean == pytest.approx(300, abs=0.5) and schedule.mean > 400


def test_vscan_keeps_its_published_stages():
    assert VScan().schedule(32, 64, 576).stages == ((0, 96), (16, 32))


@pytest.mark.parametrize("name", INSIDE)
@pytest.mark.parametrize(("layers", "tokens"), [(32, 576), (40, 576), (28, 2880), (8, 144), (8, 576), (3, 50)])
def test_every_reachable_budget_is_the_layer_mean(name, layers, tokens):
    method = create_method(name)
    for budget in range(1, tokens + 20, max(1, tokens // 37)):
        schedule = method.schedule(layers, budget, tokens)
        counts = schedule.tokens_per_layer
        assert len(counts) == layers and counts[0] <= tokens and min(counts) >= 1
        assert list(counts) == sorted(counts, reverse=True)
        least = (counts[0] + layers - 1) / layers  # one layer of the first stage, one token afterwards
        if budget >= tokens:
            assert set(counts) == {tokens}
        elif budget >= least:
            assert abs(schedule.counted_mean - budget) <= 0.5


@pytest.mark.parametrize("name", INSIDE)
def test_a_single_layer_has_no_inside(name):
    assert len(create_method(name).schedule(1, 5, 50).tokens_per_layer) == 1
