"""Idefics3 and SmolVLM: tiles that the prompt joins to one view, marks between them, padding, unreadable prompts."""

import warnings

import pytest
import torch
from support.captures import captured
from support.families import smooth_image
from support.matrix.idefics3 import CASES, IDEFICS3, SIDE, SMOLVLM, TILE, idefics3_processor, smolvlm_processor
from support.requests import greedy
from support.towers import eager_attention

import covist
from covist.contract.method import Method

ONE = "{image}what is the colour of this ?"
BUILD = {"idefics3": idefics3_processor, "smolvlm": smolvlm_processor}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def either(request):
    return request.param


def encode(case, prompt, images, **options):
    """Inputs of one prompt; `options` are those of the processor (`tiles=4`)."""
    texts = [case.turn.replace("{}", prompt).replace("{image}", case.image)]
    return BUILD[case.name](**options)(images=[images], text=texts, return_tensors="pt")


def per_token(patches: torch.Tensor) -> torch.Tensor:
    """[side x side, ...] -> [SIDE, fold, SIDE, fold, ...]."""
    fold = round(len(patches) ** 0.5) // SIDE
    return patches.view(SIDE, fold, SIDE, fold, *patches.shape[1:])


def watched(case, inputs):
    base = case.model.model
    with eager_attention(case.slow.modeling, base.vision_model) as seen:
        base.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"])
    return seen[-1]


def test_evidence_and_keys_are_those_of_the_last_block_tile_by_tile(either):
    inputs = either.ask(ONE)
    tiles, block = captured(either.model, inputs), watched(either, inputs)
    assert len(tiles) == len(block.keys) > 4
    for tile, received, keys in zip(tiles, block.weights.mean((1, 2)), block.keys, strict=True):
        expected = per_token(received).sum((1, 3)).flatten()
        torch.testing.assert_close(tile.attention[0, 0], expected, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(tile.keys, per_token(keys).mean((1, 3)).flatten(0, 1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(tile.project(tile.hidden), tile.embeddings)


def test_padding_of_a_tile_neither_asks_nor_receives(either):
    inputs = either.ask(ONE)
    inputs["pixel_attention_mask"][:, 1, 30:] = 0  # the second tile is the upper part of a square
    inputs["pixel_attention_mask"][:, 1, :, 40:] = 0
    tile, block = captured(either.model, inputs)[1], watched(either, inputs)
    patch = either.model.config.vision_config.patch_size
    seen = inputs["pixel_attention_mask"][0, 1].unfold(0, patch, patch).unfold(1, patch, patch).amax((2, 3)).flatten()
    received = block.weights[1][:, seen.bool()].mean((0, 1))
    assert 0 < int(seen.sum()) < len(seen) and not received[~seen.bool()].any()
    torch.testing.assert_close(tile.attention[0, 0], per_token(received).sum((1, 3)).flatten(), atol=1e-6, rtol=1e-4)


def test_tiles_are_one_view_of_the_resized_image(either, compress):
    """What the report shows is what the processor had before it cut the image into tiles, and a global view."""
    image, processor = smooth_image(190, 95), either.processor()
    handle = compress(either, budget=12)
    either.model(**either.encode([either.turn.replace("{}", ONE)], [image]))
    (report,) = handle.report.images
    (rows, columns), whole_view = report.grid.views
    assert (whole_view, report.grid.relation) == ((SIDE, SIDE), "aligned") and columns > rows
    tiles = processor.image_processor([[image]], do_normalize=False, return_tensors="pt")["pixel_values"][0]
    shape = (rows // SIDE, columns // SIDE, 3, TILE, TILE)
    whole = tiles[:-1].view(shape).permute(2, 0, 3, 1, 4).reshape(3, shape[0] * TILE, shape[1] * TILE)
    for shown, expected in zip(report.pixels, (whole, tiles[-1]), strict=True):
        assert torch.equal(shown, (255 * expected).round().to(torch.uint8).permute(1, 2, 0))


def test_a_budget_is_for_all_tiles_of_an_image(compress):
    inputs = encode(SMOLVLM, "{image}and {image}what ?", [smooth_image(90, 90), smooth_image(40, 160)], tiles=4)
    handle = compress(SMOLVLM, budget=24)
    greedy(SMOLVLM.model, inputs, 1)
    square, tall = handle.report.images
    assert square.grid.views == ((4 * SIDE, 4 * SIDE), (SIDE, SIDE)) and square.tokens == 17 * SIDE**2
    assert tall.grid.views == ((4 * SIDE, SIDE), (SIDE, SIDE))
    assert square.tokens_per_layer == tall.tokens_per_layer == (24,) * 8
    # 17 marks, 16 more beginnings of a tile, a line break after each row and one before the global view
    assert square.markers == 17 + 16 + 5


@pytest.mark.parametrize("options", [{"tiles": 1}, {"do_image_splitting": False}], ids=["small image", "no splitting"])
def test_an_image_of_a_single_tile_has_the_global_view_alone(either, compress, options):
    inputs = encode(either, "{image}and {image}what ?", [smooth_image(40, 48), smooth_image(48, 48)], **options)
    handle = compress(either, budget=6)
    output = greedy(either.model, inputs, 2)
    handle.remove()
    assert [image.grid.views for image in handle.report.images] == [((SIDE, SIDE),)] * 2
    slow = either.slow(either.model, pro=False)
    expected = slow.logits(inputs["input_ids"][0].tolist(), inputs, list(handle.report.images))
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["fixed", "pro"])
def test_tiles_of_equal_content_are_told_apart_by_their_places(either, compress, strategy):
    blank, wide = (smooth_image(6, 6).resize((1, 1)).resize(size) for size in ((100, 100), (300, 60)))
    inputs = encode(either, "{image}and {image}what ?", [blank, wide])
    handle = compress(either, budget=20, strategy=strategy)
    output = greedy(either.model, inputs, 2)
    handle.remove()
    assert len({image.tokens for image in handle.report.images}) == 2
    slow = either.slow(either.model, pro=strategy == "pro")
    expected = slow.logits(inputs["input_ids"][0].tolist(), inputs, list(handle.report.images))
    torch.testing.assert_close(output.logits[0][0], expected, atol=1e-4, rtol=1e-4)


class Listener(Method):
    """Keeps what it is told about the instruction."""

    name = "listener"

    def __init__(self):
        super().__init__()
        self.heard = []

    def select(self, image, count):
        self.heard.append(image.instruction)
        return torch.arange(count)


def test_tile_marks_are_not_read_as_instruction(either, compress):
    """Idefics3 spells its marks out in ordinary tokens, of this image and of those after it."""
    listener = Listener()
    inputs = either.ask("this {image}and {image}what is that ?")
    compress(either, budget=12, method=listener, concentration=None)
    either.model(**inputs)
    tokenizer = either.processor().tokenizer
    for instruction in listener.heard:
        said = tokenizer.decode(inputs["input_ids"][0][instruction.rows].tolist())
        assert "row" not in said and "global" not in said
        assert instruction.text == "and what is that ?"


def test_without_a_tokenizer_every_tile_is_an_image_with_one_warning(either):
    inputs = either.ask(ONE)
    tiles = len(captured(either.model, inputs))
    with covist.compress(either.model, budget=6) as handle, pytest.warns(UserWarning, match="every tile") as caught:
        for _ in range(2):
            either.model(**inputs)
    assert [image.grid.views for image in handle.report.images] == [((SIDE, SIDE),)] * tiles
    assert len([item for item in caught if "every tile" in str(item.message)]) == 1


def test_a_single_tile_needs_no_tokenizer():
    inputs = encode(IDEFICS3, ONE, [smooth_image(48, 48)], do_image_splitting=False)
    with warnings.catch_warnings(), covist.compress(IDEFICS3.model, budget=6) as handle:
        warnings.simplefilter("error")
        IDEFICS3.model(**inputs)
    assert len(handle.report.images) == 1


def without_tile(case, inputs, number):
    """The same inputs without a tile: neither its pixels nor its placeholders, and nothing of its mark."""
    image, tokens = case.model.config.image_token_id, SIDE**2
    ids = inputs["input_ids"][0]
    places = (ids == image).nonzero()[:, 0][number * tokens : (number + 1) * tokens]
    before = int((ids[: places[0]] == image).nonzero()[-1]) + 1 if number else 0
    ids = torch.cat([ids[:before], ids[places[-1] + 1 :]])[None]
    kept = [tile for tile in range(inputs["pixel_values"].shape[1]) if tile != number]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": inputs["pixel_values"][:, kept],
        "pixel_attention_mask": inputs["pixel_attention_mask"][:, kept],
    }


def test_tiles_without_a_global_view_are_one_view(compress):
    inputs = without_tile(IDEFICS3, IDEFICS3.ask(ONE), 4)
    handle = compress(IDEFICS3, budget=12)
    IDEFICS3.model(**inputs)
    assert [image.grid.views for image in handle.report.images] == [((2 * SIDE, 2 * SIDE),)]


def test_tiles_that_fill_no_rectangle_are_images_of_their_own(compress):
    inputs = without_tile(IDEFICS3, IDEFICS3.ask(ONE), 1)
    plain = greedy(IDEFICS3.model, inputs, 2)
    handle = compress(IDEFICS3, budget=SIDE**2)
    assert torch.equal(greedy(IDEFICS3.model, inputs, 2).sequences, plain.sequences)
    assert [image.grid.views for image in handle.report.images] == [((SIDE, SIDE),)] * 4
