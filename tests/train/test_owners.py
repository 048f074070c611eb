"""Owners: honest about which patch shows what."""

import numpy as np

from covist.tiny import glyphs
from covist.tiny.scenes import GRID, PATCH, SIZES, sample_scene
from train.tiny.owners import patch_owners


def test_patches_belong_to_the_thing_they_show():
    for seed in range(40):
        scene = sample_scene(seed)
        owners = patch_owners(scene)
        assert owners.shape == (GRID, GRID)
        assert set(owners.flatten()) == set(range(len(scene.things) + 1))
        for row, column in np.argwhere(owners):
            thing = scene.things[owners[row, column] - 1]
            reach = glyphs.HEIGHT / 2 if thing.char else SIZES[thing.size]
            assert abs(column * PATCH + PATCH / 2 - thing.x) <= reach + PATCH
            assert abs(row * PATCH + PATCH / 2 - thing.y) <= reach + PATCH
