"""The recipe of the photograph bed, on rendered stand-ins and a tower that was never trained."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, CLIPVisionConfig, CLIPVisionModel, Dinov2Config, Dinov2Model, ViTConfig

from covist import tiny
from covist.errors import CovistError
from covist.eval.photos import photo_suite
from covist.eval.photos.data import DEVELOPMENT, TRAIN, split_of
from covist.eval.photos.subject import CaptionSubject
from covist.request.inputs import prepare
from train.photos import features, questions, towers, train
from train.photos.lessons import Lesson, read_lessons
from train.photos.packing import LessonPacker
from train.photos.text import build_tokenizer, vocabulary
from train.runner import restore

SIZE, PATCH = 112, 8  # 14 x 14 patches
SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": PATCH}
TOWERS = {
    "clip": lambda: CLIPVisionModel(CLIPVisionConfig(image_size=SIZE, intermediate_size=64, **SHAPE)),
    "dinov2": lambda: Dinov2Model(Dinov2Config(image_size=SIZE + PATCH, mlp_ratio=2, **SHAPE)),  # to be resized
}


@pytest.fixture(scope="module", params=TOWERS)
def folder(tmp_path_factory, request):
    """Captioned scenes, of which every third has listed objects, and a tower of each kind."""
    made = tmp_path_factory.mktemp("bed")
    (made / "data" / "images").mkdir(parents=True)
    rows = ["image,caption"]
    for number in range(180):
        image = tiny.scene_image(tiny.sample_scene(number)).resize((SIZE, SIZE))
        image.save(made / "data" / "images" / f"{number}.png")
        rows += [f"{number}.png,A red circle, above a blue square.", f"{number}.png,Two squares"]
    (made / "data" / "captions.txt").write_text("\n".join(row.replace(", above", " above") for row in rows))
    objects = {f"{number}.png": ["apple", "dog"][: number % 2 + 1] for number in range(0, 180, 3)}
    (made / "data" / "objects.json").write_text(json.dumps(objects))
    questions.main(["--data", str(made / "data")])
    torch.manual_seed(0)
    TOWERS[request.param]().save_pretrained(made / "tower")
    return made


def options(folder, **further):
    given = {"data": folder / "data", "tower": folder / "tower", **further}
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def computed(folder):
    features.main(options(folder, out=folder / "features"))
    return folder / "features"


@pytest.fixture(scope="module")
def trained(folder, computed):
    train.main(options(folder, features=computed, out=folder / "run", steps=2))
    return folder / "run"


def patch_states(folder, image):
    """What LLaVA reads of a tower: the states of the layer before the last, without the class token."""
    tower = towers.load_tower(folder / "tower")
    pixels = towers.image_processor(tower)([image], return_tensors="pt").pixel_values
    with torch.no_grad():
        return tower(pixels, output_hidden_states=True).hidden_states[-2][:, 1:]


def test_features_are_those_of_the_layer_before_the_last(folder, computed):
    photo = read_lessons(folder / "data", TRAIN)[0]
    expected = patch_states(folder, Image.open(photo.path))[0]
    stored = np.load(features.feature_path(computed, photo))
    assert stored.shape == (196, 32) and stored.dtype == np.float16
    assert torch.from_numpy(stored).float() == pytest.approx(expected, abs=0.05 * float(expected.std()))


def test_only_missing_features_are_computed_and_no_test_images(folder, computed, capsys):
    read = [*read_lessons(folder / "data", TRAIN), *read_lessons(folder / "data", DEVELOPMENT)]
    assert {path.name for path in computed.iterdir()} == {f"{lesson.path.name}.npy" for lesson in read}
    features.feature_path(computed, read[3]).unlink()
    features.main(options(folder, out=computed))
    assert capsys.readouterr().out == "1 of 1 images\n"
    assert features.feature_path(computed, read[3]).exists()


def test_a_tower_for_larger_images_equals_interpolated_positions(folder):
    larger, plain = towers.load_tower(folder / "tower", 144), AutoModel.from_pretrained(folder / "tower")
    interpolated = {"interpolate_pos_encoding": True} if isinstance(plain, CLIPVisionModel) else {}  # DINOv2 always
    pixels = torch.randn(1, 3, 144, 144)
    with torch.no_grad():
        expected = plain(pixels, **interpolated).last_hidden_state
        assert torch.equal(larger(pixels).last_hidden_state, expected)
    assert larger.config.image_size == 144


def test_each_tower_sees_the_colours_that_it_was_trained_on():
    grey = Image.new("RGB", (SIZE, SIZE), (124, 116, 104))  # the mean of ImageNet, which is not quite CLIP's
    means = {
        kind: towers.image_processor(build())([grey], return_tensors="pt").pixel_values.abs().max()
        for kind, build in TOWERS.items()
    }
    assert means["dinov2"] < 0.01 < means["clip"]


def test_another_kind_of_tower_is_refused(tmp_path):
    ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(CovistError, match="holds a vit; the tower must be CLIP's or DINOv2's"):
        towers.load_tower(tmp_path)


def test_rare_words_are_not_in_the_vocabulary():
    words = vocabulary(["A dog!"] * 4 + ["a cat"] * 3)
    assert "dog" in words and "cat" not in words and "describe" in words and "!" not in words


def caption_and_answer_losses(folder, run, image, lesson):
    """What training says about a lesson: nats of the captions' words, and of the first word of each answer."""
    bank = train.FeatureBank(folder / "data", folder / "features", DEVELOPMENT)
    captioner = train.build(folder / "data", folder / "tower", SIZE, bank)[1].eval()
    restore(run / "captions.pt", {"captioner": captioner})
    with torch.no_grad():
        losses, is_answer = captioner.losses(captioner.visual(patch_states(folder, image)), torch.arange(196), [lesson])
    labels = captioner.packer([lesson]).labels
    ends = labels[labels != train.IGNORED] == captioner.packer.tokenizer.eos_token_id
    return losses[~ends & ~is_answer].tolist(), losses[~ends & is_answer].tolist()


def test_the_exported_model_reads_captions_and_questions_as_training_does(folder, trained):
    """Packing, folded standardisation, prompt and positions: the loss through the whole model is the same."""
    item = photo_suite(folder / "data").items(1, "even")[0]
    lesson = read_lessons(folder / "data", DEVELOPMENT)[0]
    asked = "Is there an apple in the image?"
    captions, answers = caption_and_answer_losses(
        folder, trained, item.image, Lesson(lesson.path, lesson.captions, ((asked, "yes"), (asked, "no")))
    )
    subject = CaptionSubject.resolve(str(trained / "model"), 8)
    assert [loss for caption in subject.answer(item).losses for loss in caption] == pytest.approx(captions, abs=2e-3)
    request = prepare(subject.loaded, [item.image], asked)
    with torch.no_grad():
        chances = subject.model(**request.inputs(subject.model)).logits[0, -1].log_softmax(-1)
    words = subject.loaded.processor.tokenizer.convert_tokens_to_ids(["yes", "no"])
    assert (-chances[words]).tolist() == pytest.approx(answers, abs=2e-3)


def test_a_second_call_continues(folder, computed, trained):
    train.main(options(folder, features=computed, out=trained, steps=3))
    assert torch.load(trained / "captions.pt")["optimiser"]["steps"] == 3


def rows_of(path):
    return list(map(json.loads, path.read_text().splitlines()))


def test_a_blind_model_learns_nothing_from_questions_about_objects(folder):
    rows = [row for row in rows_of(folder / "data" / "questions.jsonl") if row["family"] == "presence"]
    for split in (TRAIN, DEVELOPMENT):
        said = Counter((row["question"], row["answer"]) for row in rows if split_of(row["image"][7:]) == split)
        assert said and all(said[asked, "yes"] == said[asked, "no"] for asked, _ in said)
    assert {row["question"] for row in rows} == {"Is there a dog in the image?"}, "the apple is in every image"


CAPTIONS = {
    "a.jpg": ["Two brown dogs run on grass .", "A dog in the grass", "Two dogs chase a red ball"],
    "b.jpg": ["A man in a blue shirt", "A man with a red shirt", "A guy by the water"],
    "c.jpg": ["A boy throws a stick"] * 3,
}


def test_what_captions_say_becomes_questions():
    there, absent = questions.mentioned(CAPTIONS)
    assert there["dog"] == ["a.jpg"] and absent["dog"] == ["b.jpg", "c.jpg"]
    assert there["man"] == ["b.jpg"], "a guy is a man"
    assert "a.jpg" not in there["ball"] + absent["ball"], "one caption of three is too few to be sure"
    asked = {one.question: one.answer for one in questions.presence(there, absent, seed=0)}
    assert {"Is there grass in the image?", "Is there a man in the image?"} <= asked.keys()
    found = [(one.image, one.question, one.answer) for one in questions.attributes(CAPTIONS)]
    assert found == [
        ("a.jpg", "What color are the dogs?", "brown"),
        ("a.jpg", "What color is the ball?", "red"),
        ("a.jpg", "How many dogs are there?", "two"),
    ], "captions of b.jpg disagree about the shirt"


def test_a_part_of_a_lesson_is_drawn_from_it():
    lesson = Lesson(None, tuple("abcde"), tuple((name, "yes") for name in "uvw"))
    part = lesson.part(2, 5, np.random.default_rng(0))
    assert len(part.captions) == 2 and set(part.captions) <= set(lesson.captions)
    assert part.questions == lesson.questions, "all of them, in their order"


def test_questions_are_read_and_answers_predicted():
    tokenizer = build_tokenizer(vocabulary(["is there a dog", "yes"] * 4))
    packed = LessonPacker(tokenizer, image_tokens=3)([Lesson(None, ("a dog",), (("is there a dog?", "yes"),))])
    predicted = packed.labels != train.IGNORED
    words = tokenizer.convert_ids_to_tokens(packed.labels[predicted])
    assert words == ["a", "dog", "</s>", "yes", "</s>"]
    assert packed.is_answer[predicted].tolist() == [False] * 3 + [True] * 2
    assert packed.positions[packed.blocks == 1].tolist() == [5, 6, 7, 8, 9, 10], "as if it were asked alone"
