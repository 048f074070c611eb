import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.config import CovistConfig
from covist.schedule import (
    DEFAULT_LEVEL,
    CoverageBudget,
    Schedule,
    check_budget,
    decoder_flops,
    fixed_schedule,
    kv_bytes,
    progressive_schedule,
    resolve_budget,
)

PAPER = [
    (32, 576, 192, (288, 173, 48), (0, 14, 24), 192.0625),
    (32, 576, 128, (192, 115, 32), (0, 14, 24), 127.9375),
    (32, 576, 64, (96, 58, 16), (0, 14, 24), 64.125),
    (40, 576, 192, (288, 168, 48), (0, 18, 30), 192.0),
    (40, 576, 128, (192, 112, 32), (0, 18, 30), 128.0),
    (40, 576, 64, (96, 56, 16), (0, 18, 30), 64.0),
    (32, 2880, 640, (960, 576, 160), (0, 14, 24), 640.0),
    (32, 2880, 320, (480, 288, 80), (0, 14, 24), 320.0),
    (32, 2880, 160, (240, 144, 40), (0, 14, 24), 160.0),
    (28, 1296, 512, (768, 469, 128), (0, 12, 21), (12 * 768 + 9 * 469 + 7 * 128) / 28),
    (28, 1296, 256, (384, 235, 64), (0, 12, 21), (12 * 384 + 9 * 235 + 7 * 64) / 28),
    (28, 1296, 128, (192, 117, 32), (0, 12, 21), (12 * 192 + 9 * 117 + 7 * 32) / 28),
]


@pytest.mark.parametrize("layers, tokens, budget, counts, depths, mean", PAPER)
def test_progressive_schedules_of_the_paper(layers, tokens, budget, counts, depths, mean):
    schedule = progressive_schedule(layers, budget, tokens)
    assert schedule.stages == tuple(zip(depths, counts, strict=True))
    assert schedule.mean == mean
    assert [schedule.tokens_per_layer[depth] for depth in depths] == list(counts)


@given(st.integers(1, 90), st.integers(1, 3000), st.integers(1, 3000))
def test_every_schedule_shrinks_and_fills_all_layers(layers, budget, tokens):
    schedule = progressive_schedule(layers, budget, tokens)
    counts = schedule.tokens_per_layer
    assert len(counts) == layers
    assert all(1 <= count <= tokens for count in counts)
    assert all(a >= b for a, b in zip(counts, counts[1:], strict=False))
    assert schedule.mean == pytest.approx(sum(counts) / layers)


def test_a_first_stage_beyond_the_image_takes_all_its_tokens():
    schedule = progressive_schedule(32, 500, 576)
    assert schedule.stages == ((0, 576), (14, 576), (24, 125))
    assert schedule.mean == 463.25


def test_a_budget_of_the_whole_image_reduces_nothing():
    assert progressive_schedule(32, 576, 576).stages == ((0, 576),)
    assert fixed_schedule(32, 900, 576).tokens_per_layer == (576,) * 32


def test_stage_ratios_come_from_the_config():
    config = CovistConfig(first_stage_ratio=1.0, last_stage_ratio=1.0)
    assert set(progressive_schedule(32, 64, 576, config).tokens_per_layer) == {64}


@pytest.mark.parametrize("arguments", [(0, 4, 8), (4, 0, 8), (4, 4, 0)])
def test_empty_schedules_are_refused(arguments):
    for make in (fixed_schedule, progressive_schedule):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            make(*arguments)


@pytest.mark.parametrize(
    "budget, tokens, expected",
    [
        (64, 576, 64),
        ("64", 576, 64),
        (0.11, 576, 63),
        ("11%", 576, 63),
        ("11.1 %", 576, 64),
        (900, 576, 576),
        ("100%", 576, 576),
        (1.0, 576, 576),
        (1, 576, 1),
        (1e-6, 576, 1),
        ("0.5", 9, 5),
        (np.int64(64), 576, 64),
        (np.float32(0.5), 576, 288),
    ],
)
def test_budgets_are_counts_fractions_or_percentages(budget, tokens, expected):
    assert resolve_budget(budget, tokens) == expected


@pytest.mark.parametrize(
    "budget", [0, -5, 0.0, 1.5, "0", "0%", "150%", "-3", "many", "", "nan", float("nan"), True, None]
)
def test_senseless_budgets_are_refused_with_what_is_allowed(budget):
    with pytest.raises(ValueError, match=r"budget must be a positive number of tokens \(64\), a fraction in \(0, 1\]"):
        resolve_budget(budget, 576)


@pytest.mark.parametrize(
    "budget, level, bounds",
    [
        ("auto", DEFAULT_LEVEL, (16, 192)),
        (" auto ", DEFAULT_LEVEL, (16, 192)),
        ("auto:0.9", 0.9, (16, 192)),
        ("auto:90%", 0.9, (16, 192)),
        ("auto:1", 1.0, (16, 192)),
        ("auto:0.9:24:128", 0.9, (24, 128)),
        ("auto:0.9:5%:50%", 0.9, (29, 288)),
        ("auto:0.9:200:128", 0.9, (128, 128)),
        ("auto:0.9:1000:2000", 0.9, (576, 576)),
    ],
)
def test_a_budget_may_follow_the_image_between_bounds(budget, level, bounds):
    found = CoverageBudget.read(budget)
    assert (found.level, found.bounds(576)) == (level, bounds)
    assert resolve_budget(budget, 576) == bounds[1]
    check_budget(budget)


def test_bounds_follow_the_size_of_the_image_and_a_count_the_frames():
    assert CoverageBudget().bounds(2880) == (80, 960)
    assert CoverageBudget().bounds(1) == (1, 1)
    assert CoverageBudget.read("auto:0.9:4:16").bounds(800, frames=8) == (32, 128)


@pytest.mark.parametrize(
    "budget",
    ["auto:", "auto:0", "auto:1.1", "auto:many", "auto:0.9:16", "auto:0.9:0:64", "auto:0.9:a:b", "auto:0.9:1:2:3"],
)
def test_a_senseless_level_or_bound_is_refused_with_what_is_allowed(budget):
    with pytest.raises(ValueError, match=r'"auto:LEVEL:LEAST:MOST" \("auto:0.9:16:192"\), LEVEL in \(0, 1\], got'):
        check_budget(budget)


@pytest.mark.parametrize("budget", [64, "64", 0.5, "50%", "automatic"])
def test_other_budgets_do_not_follow_the_image(budget):
    assert CoverageBudget.read(budget) is None


@pytest.mark.parametrize("content, teraflops", [(2880, 43.408), (640, 10.004), (320, 5.661), (160, 3.530)])
def test_flops_of_the_efficiency_table(content, teraflops):
    """Fixed rows: 7B decoder, mean text length 61.63, 48 newline markers."""
    assert round(decoder_flops([61.63 + 48 + content] * 32, 4096, 11008) / 1e12, 3) == teraflops


def test_progressive_flops_of_the_efficiency_table():
    lengths = [61.63 + 48 + count for count in progressive_schedule(32, 160, 2880).tokens_per_layer]
    assert round(decoder_flops(lengths, 4096, 11008) / 1e12, 3) == 3.534


def test_a_cut_cache_holds_the_last_count_from_its_first_layer_on():
    stages = ((0, 90), (2, 30), (4, 10))
    plain, cut = Schedule(6, stages), Schedule(6, stages, cache_cut_from=1)
    assert plain.tokens_per_layer == cut.tokens_per_layer == (90, 90, 30, 30, 10, 10)
    assert plain.cached_tokens_per_layer == plain.tokens_per_layer and plain.cached_mean == plain.mean
    assert cut.cached_tokens_per_layer == (90, 10, 10, 10, 10, 10)
    assert cut.mean == 260 / 6 and cut.cached_mean == 140 / 6
    assert Schedule(6, stages, cache_cut_from=0).cached_tokens_per_layer == (10,) * 6


def test_kv_bytes_count_keys_and_values_of_every_layer():
    assert kv_bytes([10, 20], kv_heads=8, head_dim=64, element_size=2) == 2 * 30 * 8 * 64 * 2


@pytest.mark.parametrize("budget, expected", [(16, 64), ("16", 64), (0.25, 100), ("25%", 100), (200, 400), (1, 4)])
def test_in_a_video_a_count_is_meant_for_each_frame_and_a_share_for_all(budget, expected):
    assert resolve_budget(budget, tokens=400, frames=4) == expected
