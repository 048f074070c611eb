import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.config import CovistConfig
from covist.schedule import (
    Schedule,
    decoder_flops,
    fixed_schedule,
    kv_bytes,
    progressive_schedule,
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
