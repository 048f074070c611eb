"""Crowded scenes: repeatable, never overlapping, and too small for the base view."""

import itertools

import numpy as np

from covist.tiny.hd.scenes import HD_LOOK, HD_SIDE, TEXTS, sample_hd_scene
from covist.tiny.scenes import render

SEEDS = range(30)


def test_one_seed_gives_one_image():
    sample_hd_scene.cache_clear()
    first = render(sample_hd_scene(7))
    sample_hd_scene.cache_clear()
    assert first.shape == (HD_SIDE, HD_SIDE, 3)
    assert np.array_equal(first, render(sample_hd_scene(7)))
    assert not np.array_equal(first, render(sample_hd_scene(8)))


def test_every_scene_has_12_to_24_objects():
    counts = [len(sample_hd_scene(seed).objects) for seed in range(200)]
    assert min(counts) == 12
    assert max(counts) == 24


def test_two_numbers_and_two_words_differ_in_colour():
    for seed in SEEDS:
        for kind, (_, alphabet) in TEXTS.items():
            glyphs = sample_hd_scene(seed).of(kind)
            assert len(glyphs) == 6
            assert len({glyph.color for glyph in glyphs}) == 2
            assert {glyph.char for glyph in glyphs} <= set(alphabet)


def test_things_stay_inside_and_apart():
    for seed in SEEDS:
        boxes = []
        for thing in sample_hd_scene(seed).things:
            half = (HD_LOOK.glyph_width / 2, HD_LOOK.glyph_height / 2) if thing.char else (HD_LOOK.radius(thing),) * 2
            assert half[0] <= thing.x <= HD_SIDE - half[0]
            assert half[1] <= thing.y <= HD_SIDE - half[1]
            boxes.append((thing.x, thing.y, *half))
        for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(boxes, 2):
            assert abs(ax - bx) >= aw + bw or abs(ay - by) >= ah + bh


def test_sizes_differ_by_less_than_a_third():
    assert 1 < HD_LOOK.large / HD_LOOK.small < 4 / 3
