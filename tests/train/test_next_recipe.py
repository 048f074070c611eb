"""The second bed's recipe: every stage learns within a few steps, and growing changes no answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from covist.tiny import prompt_for, scene_image
from covist.tiny.model import Size, build_clip
from covist.tiny.scenes import GRID as FIRST_GRID
from train.runner import Budget
from train.tiny.hd.decoder import NextPhase, NextTrainer
from train.tiny.hd.lessons import excerpt
from train.tiny.hd.model import build_next, build_next_processor, grow, shrink_clip
from train.tiny.hd.recipe import train_decoder, train_on_symbols, train_projector, train_tower
from train.tiny.hd.views import IMAGE_TOKENS, VIEW_GRID, ViewBank
from train.tiny.hd.vision import ViewPhase, in_view
from train.tiny.packing import pack
from train.tiny.train import main

SMALL = Size(width=64, vision_layers=2, text_layers=1, decoder_layers=2, decoder_mlp=96, decoder_width=64)
SYMBOLS = (NextPhase("symbols", 1.0, images=4, sampled=12, statements=4, symbolic=True, objects=3, texts=1),)
SAMPLED = (NextPhase("sampled", 1.0, images=2, sampled=64, statements=4),)


@pytest.fixture(scope="module")
def bank(tmp_path_factory):
    return ViewBank(tmp_path_factory.mktemp("scenes"), 0, 24)


@pytest.fixture
def trainer(bank, tmp_path):
    model = build_next(SMALL)
    made = NextTrainer(model, bank, seed=0)
    made.see(model.model.vision_tower, tmp_path)
    return made


def test_the_tower_learns_the_views(bank, tmp_path):
    clip = shrink_clip(build_clip(SMALL))
    phases = (ViewPhase("views", 1.0, images=2, tiles=1),)
    losses = train_tower(clip, bank, Budget(steps=40), tmp_path, 0, phases)
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_the_decoder_learns_from_symbols(trainer, tmp_path):
    losses = train_on_symbols(trainer, Budget(steps=60), tmp_path, SYMBOLS)
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])


def test_the_projector_learns_the_vectors_of_the_symbols(trainer, tmp_path):
    losses = train_projector(trainer, Budget(steps=40), tmp_path, SAMPLED)
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])  # all that an untrained tower gives away
    assert all(parameter.grad is None for parameter in trainer.symbols.parameters())


def test_the_decoder_learns_through_the_frozen_tower(trainer, tmp_path):
    newline = trainer.model.model.image_newline.detach().clone()
    every = (replace(SAMPLED[0], sampled=None, images=1),)
    losses = train_decoder(trainer, Budget(steps=12), tmp_path, every, validated=False)
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert all(parameter.grad is None for parameter in trainer.cache.tower.parameters())
    assert not torch.equal(newline, trainer.model.model.image_newline)


def test_a_grown_decoder_gives_the_answers_of_its_half(bank):
    half = NextTrainer(build_next(SMALL, seed=1), bank, seed=0)
    whole = NextTrainer(build_next(replace(SMALL, decoder_layers=4), seed=2), bank, seed=0)
    grow(half.model, whole.model)
    packed = pack([half.ask(bank.scene(0), SAMPLED[0], 0, np.random.default_rng(0))], IMAGE_TOKENS)
    places = torch.arange(0, IMAGE_TOKENS, 20)[None]
    visual = torch.randn(1, places.shape[1], SMALL.decoder_width)
    whole.model.model.image_newline.data.copy_(half.model.model.image_newline)
    with torch.no_grad():
        expected, grown = (one.answer_logits(visual, places, packed)[0] for one in (half, whole))
    assert torch.allclose(expected, grown, atol=1e-5)


def test_packed_answers_are_those_of_the_whole_model(trainer):
    """The packed pass stands in for the stock forward pass: the same logits for a prompt of its own."""
    scene = trainer.bank.scene(0)
    item = trainer.ask(scene, SAMPLED[0], 0, np.random.default_rng(0))[0]
    packed, places = pack([[item]], IMAGE_TOKENS), torch.arange(IMAGE_TOKENS)[None]
    with torch.no_grad():
        trainer.cache.features[0] = 0  # as it is, not as fp16 has kept it
        features = trainer.cache(np.array([0]))
        expected, _ = trainer.answer_logits(trainer.seen(features, places), places, packed)
        trainer.standardise.fold_into(trainer.model.model.multi_modal_projector.linear_1)
        trainer.model.set_attn_implementation("sdpa")
        inputs = build_next_processor()(
            images=scene_image(scene), text=f"{prompt_for(item.question)} {item.answer}", return_tensors="pt"
        )
        logits = trainer.model.eval()(**inputs).logits[:, -packed.ids.shape[1] :]
    assert torch.allclose(expected, logits, atol=2e-2)  # features are kept in fp16


def test_only_shown_things_are_asked_about(trainer):
    indices, rng = np.array([0, 1]), np.random.default_rng(0)
    scenes = [excerpt(trainer.bank.scene(index), 3, 1, rng) for index in indices]
    places = trainer.places(SYMBOLS[0], indices, scenes, rng)
    owners = np.take_along_axis(trainer.owners(indices), places.numpy(), axis=1)
    for index, scene, shown in zip(indices, scenes, owners, strict=True):
        things = trainer.bank.scene(int(index)).things
        assert {things[owner - 1] for owner in shown if owner} == set(scene.things)


def test_centres_are_where_a_view_shows_them():
    table = torch.zeros(3, 1, 8, dtype=torch.long)
    table[..., -3:-1] = torch.tensor([100, 30])  # in the tile on the upper right
    moved = in_view(table, torch.tensor([0, 2, 1]))
    assert moved[0, 0, -3:-1].tolist() == [50, 15]
    assert moved[1, 0, -3:-1].tolist() == [36, 30]
    assert moved[2, 0, -3:-1].tolist() == [100, 30]  # outside the upper left tile


def test_a_shrunk_clip_keeps_the_upper_left_places():
    clip = build_clip(SMALL)
    small = shrink_clip(clip)
    name = "vision_model.embeddings.position_embedding.weight"
    kept = clip.state_dict()[name][1:].view(FIRST_GRID, FIRST_GRID, -1)[:VIEW_GRID, :VIEW_GRID]
    assert torch.equal(small.state_dict()[name][1:], kept.flatten(0, 1))
    assert small.config.vision_config.image_size == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--bed", "next", "--minutes", "1", "2"], "takes 4 numbers, one each for vision, symbols"),
        (["--stages", "symbols"], "are vision, decoder, export; not symbols"),
    ],
)
def test_stages_and_minutes_belong_to_a_bed(options, message, capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), *options])
    assert message in capsys.readouterr().err
