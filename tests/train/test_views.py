"""Views: what training renders is what the processor cuts and the model packs."""

import numpy as np
import torch

from covist.tiny import prompt_for
from covist.tiny.hd.scenes import HD_SIDE, sample_hd_scene
from covist.tiny.model import Size
from covist.tiny.scenes import PATCH, scene_image
from covist.tiny.text import IMAGE, TOKEN_ID
from train.tiny.hd.model import ROPE_THETA, build_next, build_next_processor
from train.tiny.hd.views import GRID, IMAGE_TOKENS, NEWLINE, VIEW_GRID, VIEW_PATCHES, VIEWS, ViewBank, prompt_order
from train.tiny.owners import patch_owners

SMALL = Size(width=32, heads=2, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=32, decoder_width=32)


def test_the_bank_draws_what_the_processor_cuts_out(tmp_path):
    bank, scene = ViewBank(tmp_path, 0, 2), sample_hd_scene(1)
    drawn = bank.batch(np.array([1]))[0][0]  # [1280, 48]
    pixels = build_next_processor().image_processor(scene_image(scene), return_tensors="pt").pixel_values[0]
    cells = pixels.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)  # [views, 3, rows, columns, 4, 4]
    cut = cells.permute(0, 2, 3, 1, 4, 5).reshape(VIEWS * VIEW_PATCHES, -1)
    assert torch.allclose(drawn, cut, atol=1e-5)


def test_the_prompt_order_is_how_the_model_packs_its_views():
    model = build_next(SMALL)
    numbers = torch.arange(VIEWS * VIEW_PATCHES, dtype=torch.float64).view(VIEWS, VIEW_PATCHES, 1)
    packed, _ = model.model.pack_image_features(
        [numbers],
        torch.tensor([[HD_SIDE, HD_SIDE]]),
        vision_feature_select_strategy="default",
        image_newline=numbers.new_tensor([NEWLINE]),
    )
    assert packed[0][:, 0].long().tolist() == prompt_order().tolist()


def test_a_prompt_has_1312_visual_tokens():
    inputs = build_next_processor()(
        images=scene_image(sample_hd_scene(0)), text=prompt_for("what is the red word?"), return_tensors="pt"
    )
    assert int((inputs.input_ids == TOKEN_ID[IMAGE]).sum()) == IMAGE_TOKENS == 1312


def test_owners_of_the_tiles_join_to_those_of_the_image(tmp_path):
    bank = ViewBank(tmp_path, 0, 1)
    order = prompt_order()[VIEW_PATCHES:].reshape(GRID, GRID + 1)[:, :-1]
    assert np.array_equal(bank.owners[0][order], patch_owners(sample_hd_scene(0)))
    base = bank.owners[0][:VIEW_PATCHES].reshape(VIEW_GRID, VIEW_GRID)
    assert np.array_equal(base, patch_owners(sample_hd_scene(0), 2 * PATCH))


def test_one_rotary_frequency_turns_once_per_row():
    frequencies = ROPE_THETA ** -(torch.arange(0, 24, 2) / 24)  # heads of 24
    assert torch.isclose(frequencies, torch.tensor(2 * torch.pi / (GRID + 1)), rtol=1e-5).any()
