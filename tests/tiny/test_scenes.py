"""Scenes: repeatable, crowded and never overlapping."""

import itertools

import numpy as np
import pytest

from covist.tiny import glyphs, scenes
from covist.tiny.scenes import COLORS, IMAGE_SIZE, SIZES, render, sample_scene, scene_image

SEEDS = range(40)


def test_one_seed_gives_one_image():
    sample_scene.cache_clear()
    first = render(sample_scene(7))
    sample_scene.cache_clear()
    assert np.array_equal(first, render(sample_scene(7)))
    assert not np.array_equal(first, render(sample_scene(8)))


def test_an_image_is_what_the_renderer_drew():
    image = scene_image(sample_scene(3))
    assert image.size == (IMAGE_SIZE, IMAGE_SIZE) and image.mode == "RGB"
    assert np.array_equal(np.asarray(image), render(sample_scene(3)))


def test_seed_ranges_never_meet():
    ranges = [scenes.TRAIN_SEEDS, scenes.VALIDATION_SEEDS, scenes.HELD_OUT_SEEDS]
    for one, other in itertools.combinations(ranges, 2):
        assert one.stop <= other.start or other.stop <= one.start


def test_scenes_are_sparse_and_crowded():
    counts = [len(sample_scene(seed).objects) for seed in range(300)]
    assert min(counts) == 2
    assert max(counts) >= 11


@pytest.mark.parametrize("objects", [1, 5, 9])
def test_the_number_of_objects_can_be_asked_for(objects):
    assert all(len(sample_scene(seed, objects).objects) == objects for seed in SEEDS)


def test_things_stay_inside_and_apart():
    for seed in SEEDS:
        boxes = []
        for thing in sample_scene(seed).things:
            half = (glyphs.WIDTH / 2, glyphs.HEIGHT / 2) if thing.char else (SIZES[thing.size],) * 2
            assert half[0] <= thing.x <= IMAGE_SIZE - half[0]
            assert half[1] <= thing.y <= IMAGE_SIZE - half[1]
            boxes.append((thing.x, thing.y, *half))
        for (ax, ay, aw, ah), (bx, by, bw, bh) in itertools.combinations(boxes, 2):
            assert abs(ax - bx) >= aw + bw or abs(ay - by) >= ah + bh


def test_objects_are_painted_in_their_colour():
    """Checked on pixels: at the centre of a filled shape the nearest named colour is the object's own."""
    names, values = list(COLORS), np.array(list(COLORS.values())) * 255
    for seed in SEEDS:
        scene = sample_scene(seed)
        pixels = render(scene).astype(float)
        for thing in scene.objects:
            if thing.shape != "ring":  # its centre is a hole
                x, y = int(thing.x), int(thing.y)
                seen = pixels[y - 1 : y + 1, x - 1 : x + 1].mean((0, 1))
                assert names[np.abs(values - seen).sum(1).argmin()] == thing.color


def test_glyphs_are_all_different():
    for one, other in itertools.combinations(glyphs.DIGITS + glyphs.LETTERS, 2):
        assert np.abs(glyphs.draw(one) - glyphs.draw(other)).sum() > 4, (one, other)
