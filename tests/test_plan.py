"""What a geometry says about a model, and what a plan makes of it."""

from dataclasses import replace

import pytest

from covist.plan import Geometry, make_plan

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
