"""`covist eval --suite photos`: captions that people wrote about photographs."""

import json

import pytest

from covist import tiny


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    for number in range(30):
        tiny.scene_image(tiny.sample_scene(number)).save(folder / "images" / f"{number}.png")
    rows = ["image,caption", *(f"{number}.png,a red circle above two blue squares" for number in range(30))]
    (folder / "captions.txt").write_text("\n".join(rows))
    return folder


def test_captions_are_scored_on_the_development_half(covist, model_folder, photos, tmp_path):
    asked = ("--suite", "photos", "--data", photos, "--model", model_folder, "--methods", "random", "--budgets", "24")
    ran = covist("eval", *asked, "--limit", 2, "--out", tmp_path / "out")
    assert ran.code == 0, ran.stderr
    for text in ("photos: 12 words about 2 images", "nats/word", "random", "blind"):
        assert text in ran.stdout
    assert "objects" in (tmp_path / "out" / "results.md").read_text()
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["method"] for row in stored["results"]] == ["vanilla", "random"]
    again = covist("eval", *asked, "--limit", 2, "--out", tmp_path / "out", "--json")
    assert json.loads(again.stdout)["words"]["colors"] == 4


def test_a_file_of_questions_is_answered_blind_too(covist, model_folder, photos):
    row = {"image": "images/0.png", "question": "is there a circle?", "answer": "yes"}
    (photos / "asked.jsonl").write_text(json.dumps(row))
    asked = ("--suite", "photos", "--data", photos / "asked.jsonl", "--model", model_folder)
    ran = covist("eval", *asked, "--methods", "random", "--budgets", "24")
    assert ran.code == 0, ran.stderr
    for text in ("photos: 1 question about 1 image", "all questions", "blind", "retention"):
        assert text in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--suite", "photos", "--model", "nowhere/nothing"), "photos needs --data"),
        (("--suite", "photos", "--data", "{photos}"), "photos needs --model"),
        (("--suite", "photos", "--data", "nowhere", "--model", "nowhere/nothing"), "cannot read nowhere"),
        (("--suite", "photos", "--data", "{photos}", "--model", "m", "--metric", "anls"), "--metric"),
    ],
)
def test_bad_requests_are_refused_before_a_model_is_loaded(covist, photos, arguments, complaint):
    ran = covist("eval", *(argument.format(photos=photos) for argument in arguments))
    assert ran.code == 2 and complaint in ran.stderr and "nowhere/nothing" not in ran.stderr
    assert ran.stderr.count("\n") == 1
