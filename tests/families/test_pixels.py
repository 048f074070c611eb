"""Reports show the image that the encoder saw, for every family, without having been given it."""

import warnings

import pytest
import torch
from support import llava
from support.cases import first_of
from support.families import smooth_image
from support.matrix.llava_next import PATCH, PINPOINTS, TILE
from transformers.models.llava_next.modeling_llava_next import unpad_image

import covist
from covist.report.pixels import Preprocessing, patches_of_tiles

NEXT, QWEN = first_of("llava-next"), first_of("qwen2.5-vl")


def pixels(model, processor, inputs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no clip= given")
        with covist.compress(model, processor, budget=8) as handle:
            model(**inputs)
    return [image.pixels for image in handle.report.images]


def prepared(processor, image, **options):
    """What the image processor makes of an image when it does not normalise: values in [0, 1]."""
    return processor.image_processor(image, do_normalize=False, return_tensors="pt", **options)["pixel_values"]


def as_bytes(image: torch.Tensor) -> torch.Tensor:
    """[3, h, w] in [0, 1] -> [h, w, 3]."""
    return (255 * image).round().to(torch.uint8).permute(1, 2, 0)


def test_llava_shows_each_image_of_the_prompt():
    model, processor = llava.build_llava(), llava.processor()
    images = [smooth_image(60, 90, seed) for seed in (1, 2)]
    text = "USER: <image> and <image> what color ? ASSISTANT:"
    seen = pixels(model, processor, processor(images=images, text=text, return_tensors="pt"))
    for (view,), image in zip(seen, images, strict=True):
        assert torch.equal(view, as_bytes(prepared(processor, image)[0]))


@pytest.mark.parametrize("size", [(112, 112), (60, 300), (190, 95)])
def test_llava_next_shows_the_base_view_and_the_unpadded_grid(size):
    image, processor = smooth_image(*size), NEXT.processor()
    inputs = NEXT.encode(["USER: {image} what is this ? ASSISTANT:"], [image])
    ((base, grid),) = pixels(NEXT.model, processor, inputs)
    tiles = prepared(processor, image)[0]  # [tiles, 3, side, side]
    assert torch.equal(base, as_bytes(tiles[0]))

    side, patch = TILE, PATCH
    rows, columns = (length // side for length in best_resolution(size))
    whole = tiles[1:].view(rows, columns, 3, side, side).permute(2, 0, 3, 1, 4).reshape(3, rows * side, columns * side)
    places = torch.arange(rows * columns * (side // patch) ** 2).view(1, rows * side // patch, columns * side // patch)
    kept = unpad_image(places, size[::-1])[0]  # the model removes padding in whole patches
    top, left = (int(kept[0, 0]) // places.shape[2] * patch, int(kept[0, 0]) % places.shape[2] * patch)
    expected = whole[:, top : top + kept.shape[0] * patch, left : left + kept.shape[1] * patch]
    assert torch.equal(grid, as_bytes(expected))


def best_resolution(size: tuple[int, int]) -> tuple[int, int]:
    from transformers.image_processing_utils import select_best_resolution

    return select_best_resolution(size[::-1], PINPOINTS)


@pytest.mark.parametrize("size", [(112, 112), (84, 196)])
def test_qwen_puts_its_patches_back_together(size):
    image, processor = smooth_image(*size), QWEN.processor()
    inputs = QWEN.encode([QWEN.turn.replace("{}", "{image} what is this ?")], [image])
    ((view,),) = pixels(QWEN.model, processor, inputs)
    # sides that are multiples of a token's are not resized, so that the original is what the encoder saw
    assert torch.equal(view, torch.tensor(list(image.getdata()), dtype=torch.uint8).view(size[1], size[0], 3))


def test_without_a_processor_the_range_is_stretched():
    model, inputs = llava.build_llava(), llava.ask("USER: <image> what color ? ASSISTANT:")
    ((view,),) = pixels(model, None, inputs)
    assert view.min() == 0 and view.max() == 255
    flat = Preprocessing().undo(torch.full((3, 2, 2), 0.7))
    assert flat.shape == (2, 2, 3)


def test_a_processor_that_does_not_normalise_is_taken_at_its_word():
    class Images:
        image_mean, image_std, do_normalize, do_center_crop = [0.5] * 3, [0.5] * 3, False, True

    class Processor:
        image_processor = Images()

    known = Preprocessing.of(Processor())
    assert known.center_crop and known.undo(torch.full((3, 1, 1), 0.2)).flatten().tolist() == [51] * 3
    assert Preprocessing.of(None) == Preprocessing()


def test_patches_are_cut_row_by_row_and_tile_by_tile():
    tiles = torch.arange(2 * 3 * 7 * 7).view(2, 3, 7, 7)
    patches = patches_of_tiles(tiles, 3)  # the last row and column belong to no patch
    assert patches.shape == (18, 3, 2, 2)
    assert torch.equal(patches[9 + 3 * 1 + 2], tiles[1, :, 2:4, 4:6])
