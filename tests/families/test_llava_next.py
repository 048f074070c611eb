"""LLaVA-NeXT: packed layout, newlines, and signals in the order of the content tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.captures import captured
from support.families import smooth_image
from support.ledgers import ledgers
from support.matrix.llava_next import PATCH, PINPOINTS, TILE, llava_next, llava_next_inputs, llava_next_processor
from transformers.image_processing_utils import select_best_resolution

import covist
from covist.families.registry import family_for

SIDE = TILE // PATCH
PROMPT = "USER: {image}what is the colour of this ? ASSISTANT:"
MODEL = llava_next()


def layout_of(height, width):
    family, size = family_for(MODEL), torch.tensor([height, width])
    return family.packed_layout(size, family._tiles(size))


@given(height=st.integers(8, 400), width=st.integers(8, 400))
def test_layout_follows_the_models_packing_at_every_aspect_ratio(height, width):
    layout = layout_of(height, width)
    assert len(layout.content) == llava_next_processor()._get_number_of_features(height, width, TILE, TILE) - 1
    assert layout.grid.views[0] == (SIDE, SIDE)
    assert layout.pack[: SIDE * SIDE].tolist() == list(range(SIDE * SIDE))
    assert len(layout.pack.unique()) == len(layout.pack) == layout.grid.size == int(layout.content.sum())
    for rows, columns in layout.grid.views[1:]:
        lines = layout.content[SIDE * SIDE :].view(rows, columns + 1)
        assert lines[:, :-1].all() and not lines[:, -1].any()  # one newline after every row, nowhere else


@given(height=st.integers(8, 400), width=st.integers(8, 400))
def test_grid_neighbours_are_neighbours_in_the_image(height, width):
    layout = layout_of(height, width)
    tiles_across = select_best_resolution((height, width), PINPOINTS)[1] // TILE
    for rows, columns in layout.grid.views[1:]:
        source = layout.pack[SIDE * SIDE :] - SIDE * SIDE
        tile, patch = source // SIDE**2, source % SIDE**2
        y = (tile // tiles_across * SIDE + patch // SIDE).view(rows, columns)
        x = (tile % tiles_across * SIDE + patch % SIDE).view(rows, columns)
        assert (y.diff(dim=0) == 1).all() and (x.diff(dim=1) == 1).all()
        assert (y.diff(dim=1) == 0).all() and (x.diff(dim=0) == 0).all()


def test_a_image_too_narrow_for_the_grid_keeps_its_base_view():
    assert layout_of(8, 65).grid.views == layout_of(33, 8).grid.views == ((SIDE, SIDE),)
    assert not layout_of(33, 8).content[SIDE * SIDE :].any()


def test_a_single_tile_has_one_view_and_one_trailing_newline():
    layout = family_for(MODEL).packed_layout(torch.tensor([TILE, TILE]), tiles=1)
    assert layout.grid.views == ((SIDE, SIDE),)
    assert layout.content.tolist() == [True] * SIDE * SIDE + [False]


def test_full_size_geometry_has_2880_content_tokens_and_48_newlines():
    model = llava_next(layers=1)
    model.config.vision_config.image_size = 336
    model.config.image_grid_pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    family = family_for(model)
    size = torch.tensor([672, 672])
    layout = family.packed_layout(size, family._tiles(size))
    assert layout.grid.views == ((24, 24), (48, 48))
    assert (layout.grid.size, int((~layout.content).sum())) == (2880, 48)


def test_signals_are_in_packed_order():
    inputs = llava_next_inputs([PROMPT], [smooth_image(131, 70)])
    (signals,) = captured(MODEL, inputs)
    assert signals.span[~signals.content].eq(MODEL.model.image_newline).all()
    # Projecting the encoder features of the content tokens must give the prompt's embeddings back, token by token.
    torch.testing.assert_close(signals.project(signals.hidden), signals.embeddings)
    attention = signals.attention  # [tiles, heads, patches]
    torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:2]))
    assert signals.keys.shape == (signals.grid.size, 32)


def test_class_attention_is_that_of_the_feature_layer_per_tile():
    inputs = llava_next_inputs([PROMPT], [smooth_image(131, 70)])
    (signals,) = captured(MODEL, inputs)
    MODEL.model.vision_tower.set_attn_implementation("eager")
    with torch.no_grad():
        tower = MODEL.model.vision_tower(inputs.pixel_values[0], output_attentions=True)
    MODEL.model.vision_tower.set_attn_implementation("sdpa")
    expected = tower.attentions[1][:, :, 0, 1:]  # three layers, the last but one feeds the projector
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(signals.attention, expected, atol=1e-5, rtol=1e-4)


def test_images_of_different_sizes_in_a_batch_get_their_own_tiles():
    images = [smooth_image(131, 70, 1), smooth_image(40, 120, 2), smooth_image(64, 64, 3)]
    together = captured(MODEL, llava_next_inputs([PROMPT, f"USER: {{image}}and{PROMPT[5:]}"], images))
    assert len(together) == 3
    for signals, own in zip(together, images, strict=True):
        (alone,) = captured(MODEL, llava_next_inputs([PROMPT], [own]))
        assert signals.grid == alone.grid
        torch.testing.assert_close(signals.embeddings, alone.embeddings, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(signals.keys, alone.keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(signals.attention, alone.attention, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:no clip=")
@pytest.mark.parametrize("strategy", ["fixed", "pro"])
def test_newlines_survive_every_stage_unbiased_and_in_place(strategy):
    inputs = llava_next_inputs([PROMPT], [smooth_image(131, 70)])
    is_image = inputs.input_ids[0] == MODEL.config.image_token_id
    (signals,) = captured(MODEL, inputs)
    newline_rows = is_image.nonzero()[:, 0][~signals.content]
    entering = {}
    hooks = [
        layer.register_forward_pre_hook(lambda module, args, index=index: entering.update({index: args[0]}))
        for index, layer in enumerate(MODEL.model.language_model.layers)
    ]
    with covist.compress(MODEL, llava_next_processor(), budget=8, strategy=strategy, concentration=0.1) as handle:
        cache = MODEL(**inputs).past_key_values
    for hook in hooks:
        hook.remove()
    image = handle.report.images[0]
    text = int((~is_image).sum())
    assert image.markers == len(newline_rows) == 4
    # In the first layer the newline embedding is what the model packed; the composition left it alone.
    same = (entering[0][0] == MODEL.model.image_newline).all(-1)
    assert int(same.sum()) == 4
    for layer, ledger in enumerate(ledgers(cache)):
        keys = ledger.keys
        rows = torch.isin(keys.positions[0], newline_rows)
        assert int(rows.sum()) == 4  # still at their original positions
        assert (keys.image[0, rows] == -1).all() and (keys.log_weight[0, rows] == 0).all()
        assert ledger.length == text + 4 + image.tokens_per_layer[layer]
        assert (keys.positions[0].diff() > 0).all()  # order kept
