"""What a geometry says about a model, and what a plan makes of it."""

from dataclasses import replace

import pytest

from covist.plan import Geometry, Layer, make_plan

PLAIN = Geometry("plain", 2, 64, 128, 8, 2, tokens=400)


def test_heads_may_be_wider_than_their_share_of_the_hidden_states():
    wide = replace(PLAIN, head_dim=16)
    assert (PLAIN.head_width, wide.head_width) == (8, 16)
    assert make_plan(wide, 40).kv_bytes == 2 * make_plan(PLAIN, 40).kv_bytes
    assert replace(PLAIN, heads=4).head_width == 16  # nothing is left of the other number of heads


def test_a_token_meets_only_the_active_experts():
    experts = replace(PLAIN, intermediate=32, experts=16, active_experts=4)
    assert make_plan(experts, 40).flops == make_plan(PLAIN, 40).flops
    assert make_plan(replace(experts, active_experts=5), 40).flops > make_plan(PLAIN, 40).flops


@pytest.mark.parametrize(("budget", "count"), [(10, 80), ("10%", 40), (1000, 400)])
def test_the_budget_of_a_video_is_per_frame(budget, count):
    plan = make_plan(replace(PLAIN, frames=8), budget)
    assert plan.budget == count and plan.schedule.tokens_per_layer == (count, count)


def test_markers_stay_in_every_layer():
    plan = make_plan(replace(PLAIN, markers=20), 40, text=0)
    assert plan.kv_bytes == make_plan(PLAIN, 40, text=20).kv_bytes


# -- decoders whose layers differ: 40 of 400 visual tokens, 10 text tokens, counted by hand ----------------------------


def costs(geometry, budget=40):
    """(FLOPs, cache) with and without compression."""
    plan = make_plan(geometry, budget, text=10)
    return (plan.flops, plan.kv_bytes), (plan.flops_uncompressed, plan.kv_bytes_uncompressed)


def linear_terms(n, hidden=64, mlp=128):
    return 8 * n * hidden**2 + 6 * n * hidden * mlp


def test_layers_without_attention_cost_in_proportion_to_tokens_and_cache_none():
    hybrid = replace(PLAIN, layers=4, pattern=(Layer("linear", reach=0), Layer("full")))
    for n, (flops, cache) in zip((50, 410), costs(hybrid), strict=True):
        assert flops == 4 * linear_terms(n) + 2 * (4 * n * n * 64)
        assert cache == 2 * n * (2 * 2 * 8) * 2  # layers, tokens, keys and values of two heads, bytes


def test_a_window_bounds_what_a_query_sees_and_the_cache_holds_one_key_less():
    sliding = replace(PLAIN, layers=3, pattern=(Layer("sliding", reach=100), Layer("full")))
    (flops, cache), (flops_full, cache_full) = costs(sliding)
    assert flops == 3 * linear_terms(50) + 3 * (4 * 50 * 50 * 64)  # 50 tokens fit into the window
    assert flops_full == 3 * linear_terms(410) + 4 * 410 * (100 + 410 + 100) * 64
    assert cache == (50 + 50 + 50) * 32 * 2
    assert cache_full == (99 + 410 + 99) * 32 * 2


def test_layers_may_cache_other_numbers_or_those_of_another_layer():
    latent = replace(PLAIN, pattern=(Layer("latent", cached=24),))
    assert costs(latent)[0][1] == 2 * 50 * 24 * 2
    shared = replace(PLAIN, pattern=(Layer("full", cached=96), Layer("full", cached=0)))
    assert costs(shared)[1][1] == 410 * 96 * 2


def test_shared_experts_and_dense_layers_of_a_mixture_are_counted():
    experts = replace(PLAIN, intermediate=32, experts=16, active_experts=3, shared_experts=40)
    assert experts.mlp_width == 3 * 32 + 40
    mixed = replace(experts, layers=3, pattern=(Layer(mlp=200), Layer(), Layer()))
    n = 50
    assert costs(mixed)[0][0] == linear_terms(n, mlp=200) + 2 * linear_terms(n, mlp=136) + 3 * 4 * n * n * 64


def test_the_pattern_repeats_over_as_many_layers_as_are_asked_for():
    hybrid = replace(PLAIN, layers=4, pattern=(Layer("linear", reach=0), Layer("full")))
    assert make_plan(hybrid, 40, layers=6).kv_bytes == 1.5 * make_plan(hybrid, 40).kv_bytes
    assert [layer.kind for layer in hybrid.kinds(5)] == ["linear", "full", "linear", "full", "linear"]
