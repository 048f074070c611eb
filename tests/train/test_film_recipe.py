"""The video model's recipe: both stages learn within a few steps, and the packed pass equals the stock model's."""

import numpy as np
import pytest
import torch

from covist.request.inputs import prepare
from covist.request.loading import load_model
from covist.request.videos import Video
from covist.tiny.films import film_frames, film_questions_for, render_film, sample_film
from covist.tiny.films.scenes import FRAMES, Actor
from covist.tiny.model import Size
from train.runner import Budget
from train.tiny.films.bank import COLUMNS, FilmBank, FrameBank, describe, owners_of, scaled, to_patches, token_shows
from train.tiny.films.decoder import FilmPhase, FilmTrainer, pack_film_questions
from train.tiny.films.model import PATCHES, TOKENS, VIDEO_TOKENS, VOCABULARY, build_video, save_video
from train.tiny.films.pointing import film_target, name_end
from train.tiny.films.recipe import FilmRecipe
from train.tiny.films.vision import FramePhase, encode

SMALL = Size(width=64, vision_layers=2, decoder_layers=5, decoder_mlp=96, decoder_width=64)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return FilmRecipe(tmp_path_factory.mktemp("films"), seed=0, films=6, size=SMALL)


def test_both_stages_learn_and_the_export_can_be_loaded(recipe):
    losses = recipe.vision(Budget(steps=30), (FramePhase("frames", 1.0, frames=6),))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    losses = recipe.decoder(Budget(steps=12), (FilmPhase("sampled", 1.0, films=2, sampled=48),), validated=False)
    assert np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    recipe.export()
    loaded = load_model(str(recipe.out / "export"))
    request = prepare(loaded, [], "which way does the ring move?", videos=[Video.of(film_frames(sample_film(1)))])
    assert (request.prompts["input_ids"] == loaded.model.config.video_token_id).sum() == VIDEO_TOKENS


def test_packed_answers_are_those_of_the_whole_model(recipe, tmp_path):
    """The packed pass stands in for the stock forward pass: the same logits for a prompt of its own."""
    model, film = build_video(SMALL), recipe.bank.film(0)
    trainer = FilmTrainer(model, recipe.bank, tmp_path, seed=0)
    item = film_questions_for(film)[0]
    packed, places = pack_film_questions([[item]]), torch.arange(VIDEO_TOKENS - 1)[None]
    with torch.no_grad():
        expected, _ = trainer.answer_logits(trainer.visual(trainer.cache(np.array([0]))), places, packed)
        trainer.standardise.fold_into(model.model.multi_modal_projector.linear_1)
        save_video(model, tmp_path / "saved")
        loaded = load_model(str(tmp_path / "saved"))
        request = prepare(loaded, [], item.question, videos=[Video.of(film_frames(film))])
        logits = loaded.model(**request.inputs(loaded.model)).logits[:, -1]
    last = (packed.labels[0] != -100).nonzero()[0, 0]  # the place that predicts the answer
    assert torch.allclose(expected[:, last], logits, atol=3e-2)  # features and weights are kept in fp16


def test_patches_are_those_of_the_stock_tower():
    tower, frames = build_video(SMALL).model.vision_tower.eval(), render_film(sample_film(3))[:2]
    pixels = scaled(frames).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = tower(pixels, output_hidden_states=True).hidden_states[-1]
        assert torch.allclose(encode(tower, scaled(to_patches(frames))), expected, atol=1e-4)


def test_every_actor_is_seen_where_it_is():
    film = sample_film(5)
    owners, table = owners_of(film), describe(film)
    for number, actor in enumerate(film.actors, 1):
        shown = (owners == number).any(1).nonzero()[0].tolist()
        assert shown == actor.frames
        assert table[actor.frames, number, COLUMNS.index("seen")].tolist() == list(range(1, len(shown) + 1))
    assert (token_shows(owners).sum(-1) == 4).all() and token_shows(owners).shape == (FRAMES, TOKENS, 7)


def test_a_token_shows_the_four_patches_behind_it():
    owners = np.zeros(PATCHES, dtype=np.uint8)
    owners[[2, 3, 10]] = 4, 4, 1  # two in the first row, one below them
    shows = token_shows(owners)
    assert shows[1].tolist() == [1, 1, 0, 0, 2, 0, 0] and shows[0].tolist() == [4, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("question", "place"),
    [
        ("which way does the ring move ?", 4),
        ("which way does the red object move ?", 5),
        ("did the digit 7 appear before or after the red ring changed ?", 10),
        ("did the blue object appear before or after the digit 7 appeared ?", None),
    ],
)
def test_a_name_ends_where_its_actor_is_known(question, place):
    assert name_end(question.split(), Actor("still", (), color="red", shape="ring")) == place


def test_the_words_of_a_question_point_at_what_they_name(recipe):
    film = next(film for film in map(sample_film, range(99)) if film.objects[0].direction)
    (item,) = film_questions_for(film, per_family={"direction": 1})
    packed, shows = pack_film_questions([[item]]), token_shows(owners_of(film)).reshape(FRAMES * TOKENS, -1)
    frames = np.arange(FRAMES * TOKENS) // TOKENS
    target = film_target(film, [item], packed.labels[0], packed.blocks[0], shows, frames)
    number = film.actors.index(item.about[0].actor) + 1
    assert len(target.tokens) == 3 and (target.visual.numpy() == (shows[:, number] > 0)).all()
    assert target.times[0, :2].tolist() == [0, (FRAMES - 1) / FRAMES] and target.times[0, 2:].isnan().all()


def test_all_words_of_the_questions_are_known():
    asked = [item for seed in range(60) for item in film_questions_for(sample_film(seed), per_family=2)]
    words = {word for item in asked for word in [*item.question.replace("?", " ?").split(), item.answer]}
    assert words <= set(VOCABULARY)


def test_crowded_frames_show_more_than_films():
    bank = FrameBank(0, 8)
    assert ((bank.tables[..., 2] > 0).sum(1) >= 3).all() and ((bank.tables[..., 1] > 0).sum(1) >= 3).all()


def test_a_bank_is_rendered_once(tmp_path):
    first = FilmBank(tmp_path, 0, 2)
    written = next(tmp_path.rglob("patches.npy")).stat().st_mtime_ns
    again = FilmBank(tmp_path, 0, 2)
    assert np.array_equal(first.patches, again.patches)
    assert next(tmp_path.rglob("patches.npy")).stat().st_mtime_ns == written
