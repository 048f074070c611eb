"""InternVL: tiles of one image in one run, evidence among the patches of a tile, a class token that is left out."""

import pytest
import torch
from support.captures import captured
from support.families import smooth_image
from support.matrix.internvl import CASES, SIDE, SlowInternVL, internvl, internvl_processor
from support.requests import greedy
from support.towers import eager_attention
from transformers.models.internvl import modeling_internvl

import covist

CASE = CASES[0]
ONE = "{image}what is the colour of this ?"


def encode(prompt, images, **options):
    texts = [CASE.turn.replace("{}", prompt).replace("{image}", CASE.image)]
    return internvl_processor(**options)(images=images, text=texts, return_tensors="pt")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_evidence_and_keys_are_those_of_the_last_block_among_the_patches_of_a_tile(case):
    inputs = case.ask(ONE)
    tiles = captured(case.model, inputs)
    base = case.model.model
    with eager_attention(modeling_internvl, base.vision_tower) as seen:
        base.get_image_features(inputs.pixel_values)
    among_patches = seen[-1].weights[:, :, 1:, 1:]
    received = (among_patches / among_patches.sum(-1, keepdim=True)).mean((1, 2))  # [tiles, patches]
    assert len(tiles) == len(received) == 7
    for tile, own, keys in zip(tiles, received, seen[-1].keys[:, 1:], strict=True):
        per_token = own.view(SIDE, 2, SIDE, 2).sum((1, 3)).flatten()
        torch.testing.assert_close(tile.attention[0, 0], per_token, atol=1e-6, rtol=1e-4)
        means = keys.view(SIDE, 2, SIDE, 2, -1).mean((1, 3)).flatten(0, 1)
        torch.testing.assert_close(tile.keys, means, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tile.project(tile.hidden), tile.embeddings)


def test_a_budget_is_for_all_tiles_of_an_image(compress):
    """12 tiles and the view of the whole; how the 12 lie is not known, so no two views are near each other."""
    inputs = encode("{image}and {image}what is this ?", [smooth_image(200, 150), smooth_image(56, 57)], max_patches=12)
    handle = compress(CASE, budget=24)
    greedy(CASE.model, inputs, 1)
    first, second = handle.report.images
    assert (first.grid.views, first.grid.relation) == (((SIDE, SIDE),) * 13, "apart")
    assert first.tokens == 13 * SIDE**2 and first.tokens_per_layer == (24,) * 8
    assert second.grid.views == ((SIDE, SIDE),) and second.tokens_per_layer == (SIDE**2,) * 8


@pytest.mark.parametrize("strategy", ["fixed", "pro"])
def test_tiles_of_equal_content_are_told_apart_by_their_places(compress, strategy):
    """A blank image: every tile has the same embeddings, and two such images differ only in how many there are."""
    blank, wide = (smooth_image(6, 6).resize((1, 1)).resize(size) for size in ((100, 100), (300, 60)))
    inputs = encode("{image}and {image}what is this ?", [blank, wide])
    assert torch.equal(inputs.pixel_values[0], inputs.pixel_values[1])
    handle = compress(CASE, budget=20, strategy=strategy)
    output = greedy(CASE.model, inputs, 2)
    handle.remove()
    assert [len(image.grid.views) for image in handle.report.images] == [5, 6]
    expected = SlowInternVL(CASE.model, pro=strategy == "pro").logits(
        inputs.input_ids[0].tolist(), inputs, list(handle.report.images)
    )
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


def test_text_between_two_images_separates_them_without_token_ids(compress):
    """Grouping needs no more than where the placeholders stand."""
    inputs = CASE.ask("{image}{image}what ?")
    handle = compress(CASE, budget=12)
    CASE.model(**inputs)
    by_ids = [image.grid for image in handle.report.images]
    embeddings = CASE.model.get_input_embeddings()(inputs.input_ids)
    CASE.model(inputs_embeds=embeddings, attention_mask=inputs.attention_mask, pixel_values=inputs.pixel_values)
    assert [image.grid for image in handle.report.images] == by_ids and len(by_ids) == 2


def test_reports_show_every_tile_and_the_whole_image_last(compress):
    image = smooth_image(112, 56)
    inputs = encode(ONE, [image])
    handle = compress(CASE, budget=12)
    CASE.model(**inputs)
    left, right, whole = handle.report.images[0].pixels
    plain = internvl_processor().image_processor(image, crop_to_patches=True, do_normalize=False, return_tensors="pt")
    for view, tile in zip((left, right, whole), plain["pixel_values"], strict=True):
        assert torch.equal(view, (255 * tile).round().to(torch.uint8).permute(1, 2, 0))


def test_evidence_follows_the_layer_that_feeds_the_projector():
    model, inputs = internvl(), CASE.ask(ONE)
    model.config.vision_feature_layer = -2
    tiles = captured(model, inputs)
    with eager_attention(modeling_internvl, model.model.vision_tower) as seen:
        model.get_image_features(inputs.pixel_values)
    for tile, keys in zip(tiles, seen[-2].keys[:, 1:], strict=True):
        means = keys.view(SIDE, 2, SIDE, 2, -1).mean((1, 3)).flatten(0, 1)
        torch.testing.assert_close(tile.keys, means, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tile.project(tile.hidden), tile.embeddings)


def test_a_call_cannot_take_features_of_another_layer():
    with covist.compress(CASE.model), pytest.raises(covist.CovistError, match="must use the model's own setting, -1"):
        CASE.model.get_image_features(CASE.ask(ONE).pixel_values, vision_feature_layer=1)
