"""The video model's weights: small, of the stock class, and right about films they have never seen."""

import pytest
from transformers import LlavaOnevisionForConditionalGeneration

import covist
from covist.eval import evaluate
from covist.request.inputs import prepare
from covist.request.videos import Video
from covist.tiny.films import VIDEO_WEIGHTS, film_demo


@pytest.fixture(scope="module")
def loaded():
    return covist.load_model("tiny-video", device="cpu")


def test_weights_are_small():
    assert sum(file.stat().st_size for file in VIDEO_WEIGHTS.rglob("*") if file.is_file()) < 6_000_000


def test_it_is_a_llava_onevision(loaded):
    assert type(loaded.model) is LlavaOnevisionForConditionalGeneration
    assert loaded.clip is None


def test_a_film_is_one_state_over_all_frames(loaded):
    frames, question, _ = film_demo()
    request = prepare(loaded, [], question, videos=[Video.of(frames)])
    with covist.compress(loaded.model, loaded.processor, method="frames", budget="25%") as handle:
        loaded.model.generate(**request.inputs(loaded.model), max_new_tokens=2)
    (film,) = handle.report.visuals
    assert film.kept_per_frame().tolist() == [16 if frame in (0, 5, 10, 15) else 0 for frame in range(16)]


def test_held_out_films_are_answered_and_random_pruning_hurts(loaded):
    results = evaluate("random", "10%", suite="films", half="even", limit=10, model=loaded)
    seeing, pruned = (score.accuracy for score in results.scores)
    assert seeing > 80 and pruned < seeing - 10
