"""The suite of captioned photographs, on rendered stand-ins and a model that was never trained."""

import copy
import json
import math
import re

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Dinov2Config, Dinov2Model, LlavaForConditionalGeneration

import covist
from covist import tiny
from covist.api.setup import Setup
from covist.budget import Count
from covist.errors import CovistError
from covist.eval.photos import QuestionResults, evaluate_photos, photo_suite
from covist.eval.photos.data import DEVELOPMENT, TEST, TRAIN, read_photos, split_of
from covist.eval.photos.results import PhotoResults
from covist.eval.photos.subject import CaptionSubject
from covist.eval.photos.tower import remembered_tower
from covist.eval.photos.words import ALL, word_class, words_of
from covist.eval.records import ItemAnswers, Records, Run
from covist.request.answer import compressed

CAPTIONS = ("A red circle above a blue square .", "The photo is of a zebra, and 2 objects.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty captioned images, of which a few are in each held-out split."""
    made = tmp_path_factory.mktemp("photos")
    (made / "images").mkdir()
    rows = ["image,caption"]
    for number in range(40):
        tiny.scene_image(tiny.sample_scene(number)).save(made / "images" / f"{number}.png")
        rows += [f'{number}.png,"{caption}"' for caption in CAPTIONS]
    (made / "captions.txt").write_text("\n".join(rows))
    return made


@pytest.fixture
def loaded(untrained):
    return untrained


def test_the_split_follows_from_the_name_alone(folder):
    photos = {split: read_photos(folder, split) for split in (TRAIN, DEVELOPMENT, TEST)}
    names = [photo.path.name for own in photos.values() for photo in own]
    assert len(names) == len(set(names)) == 40
    assert all(split_of(photo.path.name) == split for split, own in photos.items() for photo in own)
    assert split_of("1000268201_693b08cb0e.jpg") == TRAIN and len(photos[TRAIN]) > 20


def test_a_copy_under_another_name_is_left_out(folder, tmp_path):
    (tmp_path / "images").mkdir()
    names = [f"{number}.png" for number in range(30)]
    for name in names:
        (tmp_path / "images" / name).write_bytes((folder / "images" / "0.png").read_bytes())
    (tmp_path / "captions.txt").write_text("\n".join(["image,caption", *(f"{name},a circle" for name in names)]))
    assert [photo.path.name for photo in read_photos(tmp_path, split_of("0.png"))] == ["0.png"]


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (None, "cannot read"),
        ("0.png|a circle", "must begin with the line image,caption"),
        ("image,caption\nnone.png,a circle", "has no none.png"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused(tmp_path, written, complaint):
    (tmp_path / "images").mkdir()
    if written is not None:
        (tmp_path / "captions.txt").write_text(written)
    with pytest.raises(CovistError, match=complaint):
        read_photos(tmp_path, TRAIN)


def test_halves_of_the_suite_are_the_splits(folder):
    suite = photo_suite(folder)
    for half, split in (("even", DEVELOPMENT), ("odd", TEST)):
        own = {Image.open(photo.path).tobytes() for photo in read_photos(folder, split)}
        assert {item.image.tobytes() for item in suite.items(half=half)} <= own


def test_words_have_classes():
    words = words_of("Two dogs, one red, run past a man's house.")
    assert [word.text for word in words] == ["two", "dogs", "one", "red", "run", "past", "a", "man's", "house"]
    assert [word_class(text) for text in ("two", "dogs", "red", "past", "run")] == [
        "numbers", "objects", "colors", "relations", "other",
    ]  # fmt: skip


def test_the_loss_of_a_caption_is_that_of_one_plain_pass(folder, loaded):
    model, processor, _ = loaded
    suite = photo_suite(folder)
    item = suite.items(1, "even")[0]
    said = CaptionSubject.resolve(loaded).answer(item)
    inputs = processor(
        text=[tiny.prompt_for("Describe the photo.") + " " + CAPTIONS[0]], images=[item.image], return_tensors="pt"
    )
    with torch.no_grad():
        chances = model(**inputs).logits.log_softmax(-1)[0, :-1]
    ids = inputs.input_ids[0, 1:]
    length = len(processor.tokenizer(CAPTIONS[0], add_special_tokens=False).input_ids)
    expected = -chances[torch.arange(len(ids)), ids][-length:][:-1]  # the last token is a full stop: no word
    known = [loss for loss in said.losses[0] if loss is not None]
    read = [loss for loss, token in zip(expected.tolist(), ids[-length:-1].tolist(), strict=True) if token != 2]
    assert known == pytest.approx(read, abs=1e-3)
    assert said.losses[1][5] is None, "a word that the model does not know is not scored"


def _step_by_step(loaded, request, ids):
    """The loss of every token of a text, fed to a compressed model one by one."""
    model = loaded[0]
    made, losses = model(**request.inputs(model), use_cache=True), []
    for place, token in enumerate(ids):
        losses.append(-made.logits[0, -1].log_softmax(-1)[token].item())
        fed = torch.full((request.count, 1), token)
        mask = torch.ones(request.count, request.length + place + 1, dtype=torch.long)
        made = model(input_ids=fed, attention_mask=mask, past_key_values=made.past_key_values, use_cache=True)
    return losses


@pytest.mark.parametrize("method", ["covist-max", "covist-pro", "random"])
def test_captions_do_not_change_what_compression_keeps(folder, loaded, method):
    item = photo_suite(folder).items(1, "even")[0]
    subject = CaptionSubject.resolve(loaded)
    text = "a red circle"
    ids = loaded[1].tokenizer(text, add_special_tokens=False).input_ids
    with covist.compress(loaded[0], loaded[1], method=method, budget=64, clip=loaded[2]) as handle, torch.no_grad():
        read = subject._chances(subject.requests(item)[0], [ids, ids, ids])
        kept = handle.report.mean_tokens
        expected = _step_by_step(loaded, subject.requests(item)[0], ids)
    assert (-read[0][torch.arange(len(ids)), ids]).tolist() == pytest.approx(expected, abs=1e-3)
    assert read[2] == pytest.approx(read[0], abs=1e-5), "all captions follow the same kept tokens"
    assert kept == pytest.approx(64, abs=1)


def test_a_caption_of_the_uncompressed_model_is_only_checked(folder, loaded):
    item = photo_suite(folder).items(1, "even")[0]
    subject = CaptionSubject.resolve(loaded, 6)
    alone = subject.answer(item)
    other = [token + 1 for token in alone.tokens[0]]
    subject.written = {item.number: alone.tokens[0]}
    assert subject.answer(item).tokens == alone.tokens
    subject.written = {item.number: other}
    assert subject.answer(item).tokens == [alone.tokens[0][:1]], "the first word that differs, and nothing after it"


@pytest.fixture
def over_dinov2(loaded):
    """The model with a tower that has no family file."""
    model, processor, _ = loaded
    seen = model.config.vision_config
    torch.manual_seed(0)
    tower = Dinov2Model(
        Dinov2Config(
            hidden_size=seen.hidden_size,
            num_hidden_layers=seen.num_hidden_layers,
            num_attention_heads=seen.num_attention_heads,
            image_size=seen.image_size,
            patch_size=seen.patch_size,
            mlp_ratio=2,
            layerscale_value=1.0,
        )
    )
    config = copy.deepcopy(model.config)
    config.vision_config = tower.config
    made = LlavaForConditionalGeneration(config).eval()
    made.load_state_dict(model.state_dict(), strict=False)
    made.model.vision_tower.load_state_dict(tower.state_dict())
    return made, processor, None


def _assert_remembered(loaded, folder, methods, projection):
    """Answers stay the same, and a layer computes the projection of an image once."""
    items = photo_suite(folder).items(2, "even")
    subject = CaptionSubject.resolve(loaded)

    def answers(method):
        with compressed(subject.loaded, Setup(method, 64, concentration=0.5)):
            return [subject.answer(item) for item in items]

    expected = [answers(method) for method in methods]
    computed, original = [], projection.forward
    with pytest.MonkeyPatch.context() as counting:
        counting.setattr(projection, "forward", lambda states: computed.append(len(states)) or original(states))
        with remembered_tower(loaded[0]):
            assert [answers(method) for method in methods] == expected
    assert sum(count == 1 for count in computed) == len(items), "evocut runs layers on tokens, not on images"
    assert not any("forward" in vars(module) for module in loaded[0].modules())


def test_a_remembered_tower_changes_nothing(folder, loaded):
    methods = ("vanilla", "hiprune", "evocut", "covist-max")  # evocut walks through the tower by itself
    _assert_remembered(loaded, folder, methods, loaded[0].model.vision_tower.encoder.layers[0].mlp.fc1)


def test_a_remembered_tower_without_a_family_file_changes_nothing(folder, over_dinov2):
    methods = ("vanilla", "hiprune", "covist-fixed", "covist-max")
    _assert_remembered(over_dinov2, folder, methods, over_dinov2[0].model.vision_tower.encoder.layer[0].mlp.fc1)


def test_a_blind_model_says_the_same_about_every_image(folder, loaded):
    suite = photo_suite(folder)
    first, second = suite.items(2, "even")
    subject = CaptionSubject.resolve(loaded)
    with subject.blinded(suite):
        assert subject.answer(first).losses == subject.answer(second).losses
    assert subject.answer(first).losses != subject.answer(second).losses


def _recorded(losses: dict[str, float], items) -> Records:
    records = Records(None, {})
    for method, loss in losses.items():
        for item in items:
            words = [[loss * (1 + item.number / 10)] * len(words_of(caption)) for caption in CAPTIONS]
            records.add(Run(method, Count(16)), ItemAnswers(item.number, ["a"], 0.1, 16, written=[[1]], losses=words))
    return records


def test_retention_is_the_share_of_the_gap_to_the_blind_model(folder):
    suite = photo_suite(folder)
    items = suite.items(half="even")
    records = _recorded({"vanilla": 2.0, "blind": 4.0, "random": 3.0, "divprune": 2.5}, items)
    runs = [Run(name, Count(16)) for name in ("vanilla", "blind", "random", "divprune")]
    results = PhotoResults.build(suite, items, runs, records, seed=0)
    kept = {score.method: score.retention for score in results.of[ALL].scores}
    assert kept == pytest.approx({"vanilla": 100, "random": 50, "divprune": 75})
    assert results.nats[Run("random", Count(16))] == pytest.approx(
        3 * np.mean([1 + item.number / 10 for item in items])
    )
    assert "relations" in results.to_dict()["results"][0]["retention"]
    seen = results.nats[Run("blind", Count(16))] - results.nats[Run("vanilla", Count(16))]
    assert results.gain(ALL)[0] == pytest.approx(seen)
    assert f"seeing gains {seen:.3f} [" in results.to_markdown()
    assert results.to_dict()["gain_of_seeing"]["colors"]["nats_per_word"] == pytest.approx(seen)


def test_an_evaluation_goes_on_where_it_stopped(folder, loaded, tmp_path):
    seen = []
    arguments = {"suite": photo_suite(folder), "model": loaded, "half": "even", "out": tmp_path}
    evaluate_photos("random,divprune", "16", limit=1, **arguments)
    results = evaluate_photos(
        "random,divprune", "16", limit=2, progress=lambda done, total, name: seen.append(done), **arguments
    )
    assert seen[0] == 4, "four runs over the first image are finished"
    tokens = {score.method: score.mean_tokens for score in results.of[ALL].scores}
    assert tokens["random"] == 16 and tokens["vanilla"] > 16
    assert all(math.isfinite(nats) for nats in results.nats.values())
    assert (tmp_path / "results.md").exists() and (tmp_path / "results.json").exists()


def test_the_table_has_a_column_for_each_budget_and_differences_to_the_first_method(folder):
    suite = photo_suite(folder)
    items = suite.items(half="even")
    losses = {"vanilla": 2.0, "blind": 4.0, "divprune": 2.5, "covist-fixed": 3.0, "random": 3.2}
    records = _recorded(losses, items)
    for item in items:
        words = [[3.5 * (1 + item.number / 10)] * len(words_of(caption)) for caption in CAPTIONS]
        records.add(Run("random", Count(8)), ItemAnswers(item.number, ["a"], 0.1, 8, written=[[1]], losses=words))
    runs = [*(Run(name, Count(16)) for name in losses), Run("random", Count(8))]
    table = PhotoResults.build(suite, items, runs, records, seed=0).to_markdown()
    assert "| method | 16 | 8 |" in table
    assert re.search(r"\n\| random \| 40\.0 \[\S+ \S+\] \| 25\.0 \[\S+ \S+\] \|\n", table)
    assert "Retention minus that of divprune, paired" in table
    assert re.search(r"\n\| covist-fixed \| -25\.0 \[\S+ \S+\] \|", table), "too few images for an asterisk"


def test_the_table_begins_with_the_best_method(folder):
    suite = photo_suite(folder)
    items = suite.items(half="even")
    losses = {"vanilla": 2.0, "blind": 4.0, "random": 3.2, "divprune": 2.5, "covist-fixed": 3.0}
    runs = [Run(name, Count(16)) for name in losses]
    retention = PhotoResults.build(suite, items, runs, _recorded(losses, items), seed=0).to_markdown()
    assert re.findall(r"\n\| (\S+) \| \d\d\.0 \[", retention) == ["divprune", "covist-fixed", "random"]


def test_the_table_covers_what_an_earlier_call_has_finished(folder, loaded, tmp_path):
    arguments = {"suite": photo_suite(folder), "model": loaded, "limit": 1, "out": tmp_path}
    evaluate_photos("divprune", "32,16", **arguments)
    results = evaluate_photos("random", "16", **arguments)
    assert {score.method for score, _ in results.rows()} == {"vanilla", "random"}
    assert "| method | 32 | 16 |" in (tmp_path / "results.md").read_text()


def test_an_interrupted_evaluation_has_a_table_of_what_is_finished(folder, loaded, tmp_path):
    def interrupt(done, total, name):
        if done == 3:  # vanilla, blind and the first method
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_photos(
            "divprune,random", "16", suite=photo_suite(folder), model=loaded, limit=1, out=tmp_path, progress=interrupt
        )
    table = (tmp_path / "results.md").read_text()
    assert "| divprune |" in table and "random" not in table


def test_images_of_several_sizes_are_read(folder, loaded, tmp_path):
    (tmp_path / "images").mkdir()
    rows = ["image,caption"]
    for number in range(40):
        Image.new("RGB", (40 + number, 60), (number, 200, 90)).save(tmp_path / "images" / f"{number}.png")
        rows.append(f"{number}.png,a red circle")
    (tmp_path / "captions.txt").write_text("\n".join(rows))
    item = photo_suite(tmp_path).items(1, "even")[0]
    assert len(CaptionSubject.resolve(loaded).answer(item).losses[0]) == 3


@pytest.fixture
def asked(folder):
    """Two yes-or-no questions about each of thirty images, in two families."""
    rows = [
        {"image": f"images/{number}.png", "question": f"is there a {name}?", "answer": answer, "family": family}
        for number in range(30)
        for name, answer, family in (("circle", "yes", "popular"), ("ring", "no", "rare"))
    ]
    path = folder / "asked.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return photo_suite(path)


def _answered(items, said: dict[str, tuple[str, str]]) -> Records:
    records = Records(None, {})
    for method, answers in said.items():
        for item in items:
            records.add(Run(method, Count(16)), ItemAnswers(item.number, list(answers), 0.1, 16, written=[[1], [2]]))
    return records


def test_retention_of_questions_is_the_share_of_the_gain_over_guessing(asked):
    items = asked.items()
    said = {"vanilla": ("yes", "no"), "blind": ("yes", "yes"), "random": ("yes", "yes"), "divprune": ("yes", "no")}
    records, runs = _answered(items, said), [Run(name, Count(16)) for name in said]
    records.add(runs[2], ItemAnswers(0, ["yes", "no"], 0.1, 16, written=[[1], [2]]))  # random sees one ring less
    results = QuestionResults.build(asked, items, runs, records, seed=0)
    assert {run.method: round(results.accuracy(run)["rare"].value, 1) for run in runs} == {
        "vanilla": 100.0, "blind": 0.0, "random": 3.3, "divprune": 100.0,
    }  # fmt: skip
    assert results.gain.value == 50, "half of all answers"
    kept = {score.method: score.retention for score in results.kept.scores}
    assert kept == pytest.approx({"vanilla": 100, "random": 100 / 30, "divprune": 100})
    table = results.to_markdown()
    assert "| blind | 16 | 50.0 [" in table and "Retention minus that of random, paired" in table
    stored = {row["method"]: row for row in results.to_dict()["results"]}
    assert stored["blind"]["retention"] is None and stored["divprune"]["accuracy"]["popular"]["percent"] == 100


def test_questions_are_answered_with_and_without_the_image(asked, loaded, tmp_path):
    results = evaluate_photos("random", "16", suite=asked, model=loaded, limit=2, out=tmp_path)
    assert [run.method for run in results.right] == ["vanilla", "blind", "random"]
    assert results.about == "4 questions about 2 images"
    assert evaluate_photos("random", "16", suite=asked, model=loaded, half="odd", limit=1).images == 1
    assert Records(tmp_path, results.kept.settings).of(Run("random", Count(16))).keys() == {0, 1}, "of both halves"
    assert "## Accuracy" in (tmp_path / "results.md").read_text()
