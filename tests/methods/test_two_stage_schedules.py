"""The counts of rivals that reduce before the decoder and again inside it, or merge inside it."""

import pytest

from covist.methods.create import create_method
from covist.methods.published.tops import TOPS

BEFORE_TOO = ["apet", "tops", "wtr-divprune"]


@pytest.mark.parametrize(
    ("name", "budget", "stages"),
    [
        ("apet", 192, ((0, 288), (16, 96))),
        ("apet", 128, ((0, 192), (16, 64))),
        ("apet", 64, ((0, 96), (16, 32))),
        ("wtr-divprune", 192, ((0, 284), (20, 38))),
        ("wtr-divprune", 128, ((0, 190), (20, 25))),  # in the proportions of 192; none are published
        ("wtr-divprune", 64, ((0, 96), (20, 10))),
        ("wtr-dart", 192, ((0, 576), (2, 252), (20, 38))),
        ("wtr-dart", 64, ((0, 576), (1, 60), (20, 27))),
        ("e2s-pruner", 192, ((0, 576), (3, 194), (17, 148), (22, 96))),
        ("e2s-pruner", 128, ((0, 576), (3, 122), (17, 48), (22, 42))),
        ("e2s-pruner", 64, ((0, 576), (3, 19), (17, 8), (22, 1))),  # 20, 8, 0 as published
        ("tops:counts=nominal", 128, ((0, 256), (12, 128), (24, 32))),
        ("tops:counts=nominal", 64, ((0, 128), (12, 64), (24, 16))),
        ("tops:counts=nominal", 32, ((0, 64), (12, 32), (24, 8))),
        ("mob:counts=nominal", 192, ((0, 576), (2, 192))),
        ("vlm-pruner:counts=nominal", 64, ((0, 576), (2, 64))),
    ],
)
def test_published_counts_come_out(name, budget, stages):
    assert create_method(name).schedule(32, budget, 576).stages == stages


@pytest.mark.parametrize(
    ("name", "budgets", "means"),
    [
        ("wtr-divprune", (192, 64), (191.75, 63.75)),
        ("wtr-dart", (192, 64), (192, 63.75)),
        ("mob:counts=nominal", (192, 128, 64), (216, 156, 96)),
        ("vlm-pruner:counts=nominal", (192, 128, 64), (216, 156, 96)),
        ("tops:counts=nominal", (128, 64, 32), (152, 76, 38)),
    ],
)
def test_published_layer_means_come_out(name, budgets, means):
    assert tuple(create_method(name).schedule(32, budget, 576).mean for budget in budgets) == means


def test_thirteen_billion_parameters_have_tops_published_layers():
    assert [depth for depth, _ in TOPS().schedule(40, 64, 576).stages] == [0, 15, 30]


@pytest.mark.parametrize("name", BEFORE_TOO)
@pytest.mark.parametrize("layers", [1, 2, 3, 8, 27, 28, 32, 40])
def test_methods_that_reduce_before_the_decoder_reach_every_budget(name, layers):
    method = create_method(name)
    for tokens in (2, 35, 576, 2880):
        for budget in {1, 2, 3, 7, tokens // 3, tokens - 1, tokens, tokens + 1} - {0}:
            schedule = method.schedule(layers, budget, tokens)
            counts = schedule.tokens_per_layer
            assert len(counts) == layers and min(counts) >= 1 and list(counts) == sorted(counts, reverse=True)
            assert abs(schedule.mean - min(budget, tokens)) <= 0.5
