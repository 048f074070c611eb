"""LLaVA-OneVision: tiles packed, unpadded and resized, several images in a sample, SigLIP without its head."""

import pytest
import torch
from support.captures import captured
from support.cases import CASES
from support.families import smooth_image
from support.matrix.llava_onevision import PATCH, SIDE, TILE, onevision
from support.requests import assert_same, greedy
from support.towers import eager_attention
from transformers.models.siglip import modeling_siglip

from covist.families.llava_onevision import Packing

CASE, RESIZED = (case for case in CASES if case.family == "llava-onevision")
SIZES = [(131, 170), (60, 300), (190, 95), (57, 41), (33, 199)]


def prompt(case, *sizes):
    return case.encode([case.turn.replace("{}", "{image}what is this ?")], [smooth_image(*size) for size in sizes])


def several(case, *sizes):
    """One sample with several images, handed over as such."""
    text = case.turn.replace("{}", f"{case.image} and " * len(sizes) + "what is this ?")
    images = [[smooth_image(*size, seed) for seed, size in enumerate(sizes)]]
    return case.processor()(images=images, text=[text], return_tensors="pt")


@pytest.mark.parametrize("case", [CASE, RESIZED], ids=lambda case: case.name)
@pytest.mark.parametrize("size", SIZES)
def test_layout_keys_and_attention_are_those_of_tiles_put_in_place_by_hand(case, size):
    inputs, slow = prompt(case, size), case.slow(case.model, pro=False)
    with eager_attention(modeling_siglip, case.model.model.vision_tower) as seen:
        (signals,) = captured(case.model, inputs)
    per_patch = seen[-1].weights.mean((1, 2))[..., None]  # [tiles, patches, 1]
    (height_width,) = inputs["image_sizes"].tolist()
    ((_, content, _),) = slow.encode(inputs)
    keys, _ = slow.tiles(inputs["pixel_values"][0], slow.shape(height_width))
    grid = slow.placed(keys[1:], height_width)
    assert torch.equal(signals.content, content)
    assert signals.grid.views == ((SIDE, SIDE), tuple(grid.shape[:2]))
    # the layers of the tower make hundreds of last bits of one; another place would differ in the first digit
    torch.testing.assert_close(signals.keys, torch.cat([keys[0], grid.flatten(0, 1)]), atol=1e-3, rtol=1e-3)
    placed = torch.cat([per_patch[0], slow.placed(per_patch[1:], height_width).flatten(0, 1)])
    torch.testing.assert_close(signals.attention[0, 0], placed[:, 0], atol=1e-6, rtol=1e-4)


def test_the_resized_case_really_resizes():
    ours, whole = (captured(case.model, prompt(case, (170, 170)))[0].grid.views[1] for case in (RESIZED, CASE))
    assert ours[0] < whole[0] and ours[1] < whole[1]


def test_an_image_of_one_tile_has_a_base_view_and_that_tile():
    (signals,) = captured(CASE.model, prompt(CASE, (TILE, TILE)))
    assert signals.grid.views == ((SIDE, SIDE), (SIDE, SIDE))
    assert signals.content.tolist() == [True] * SIDE**2 + ([True] * SIDE + [False]) * SIDE


def test_projecting_the_encoder_features_is_exact_unless_the_grid_was_resized():
    (signals,) = captured(CASE.model, prompt(CASE, (131, 170)))
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings, atol=1e-5, rtol=1e-4)
    (resized,) = captured(RESIZED.model, prompt(RESIZED, (131, 170)))
    errors = (resized.project(resized.hidden) - resized.embeddings).norm(dim=-1)
    base, mixed = errors[: SIDE**2], errors[SIDE**2 :]
    assert base.max() < 1e-4 < mixed.max()


def test_images_beside_others_are_one_tile_with_a_newline_at_the_end():
    for signals in captured(CASE.model, several(CASE, (131, 170), (190, 95))):
        assert signals.grid.views == ((SIDE, SIDE),)
        assert signals.content.tolist() == [True] * SIDE**2 + [False]


def test_several_images_of_a_sample_equal_the_slow_reference(strategy, compress):
    inputs = several(CASE, (131, 170), (190, 95), (60, 300))
    plain = greedy(CASE.model, inputs)
    handle = compress(CASE, budget=1.0, strategy=strategy)
    assert_same(greedy(CASE.model, inputs), plain)
    handle.remove()
    handle = compress(CASE, budget=6, strategy=strategy)
    output = greedy(CASE.model, inputs, 2)
    handle.remove()
    slow = CASE.slow(CASE.model, pro=strategy == "pro")
    expected = slow.logits(inputs["input_ids"][0].tolist(), inputs, list(handle.report.images))
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)
    assert [image.markers for image in handle.report.images] == [1, 1, 1]


def test_the_grid_is_shown_as_it_was_before_it_was_resized():
    views = [captured(case.model, prompt(case, (170, 170)))[0].read_pixels() for case in (CASE, RESIZED)]
    for ours, theirs in zip(*views, strict=True):
        assert torch.equal(ours, theirs)
    assert views[0][0].shape == (3, SIDE * PATCH, SIDE * PATCH) and views[0][1].shape[1] > views[0][0].shape[1]


def test_a_pooling_head_is_never_read():
    """Where a configuration does not turn it off, transformers builds one with random weights."""
    plain, headed = CASE.build(), CASE.build().config
    headed.vision_config.vision_use_head = True
    model = type(plain)(headed).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    ours, theirs = (captured(built, prompt(CASE, (131, 170)))[0] for built in (model, plain))
    assert torch.equal(ours.attention, theirs.attention) and torch.equal(ours.keys, theirs.keys)


def test_published_geometry():
    """768 x 768 pixels are 2 x 2 tiles; a grid of the largest image is cut down to nine tiles' worth."""
    model = onevision(layers=1)
    model.config.vision_config.image_size, model.config.vision_config.patch_size = 384, 14
    model.config.image_grid_pinpoints = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]
    for size, tiles, views in (((768, 768), 5, (54, 54)), ((1152, 1152), 10, (81, 81)), ((2304, 2304), 37, (81, 81))):
        grid, content = Packing(model.model, size, "anyres_max_9", 27).layout(tiles)
        assert grid.views == ((27, 27), views) and int((~content).sum()) == views[0]
