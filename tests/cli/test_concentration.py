"""`covist concentration`: the reference of a model on a folder of images."""

import pytest

from covist.api.setup import Setup
from covist.eval import load_suite
from covist.eval.subject import Subject
from covist.request.concentration import MEASURED, concentration, mean_concentration
from covist.request.images import load_image
from covist.request.inputs import prepare
from covist.request.loading import load_model
from covist.request.tokens import encoded_images


@pytest.fixture
def folder(tmp_path):
    """Three images, one of them late in the order of names, and something else."""
    place = tmp_path / "images"
    place.mkdir()
    for number, item in zip((1, 2, 10), load_suite("scenes").items(3), strict=True):
        item.image.save(place / f"{number}.png")
    (place / "notes.txt").write_text("no image")
    return place


def test_it_is_the_mean_over_the_images(covist, folder):
    ran = covist("concentration", "--images", folder, "--json")
    loaded = load_model("tiny")
    found = []
    for name in ("1.png", "2.png", "10.png"):
        (placed,) = encoded_images(loaded, prepare(loaded, [load_image(folder / name)], "where?"))
        found.append(concentration(placed.signals))
    assert ran.json["concentration"] == pytest.approx(sum(found) / 3, abs=1e-6)
    assert ran.json | {"concentration": 0} == {"model": "tiny", "images": 3, "concentration": 0, "file": None}


def test_a_limit_takes_the_first_images_in_the_order_of_their_numbers(covist, folder):
    ran = covist("concentration", "--images", folder, "--limit", 2, "--json")
    loaded = load_model("tiny")
    first = [prepare(loaded, [item.image], "where?") for item in load_suite("scenes").items(2)]
    assert ran.json["concentration"] == mean_concentration(loaded, first) and ran.json["images"] == 2


def test_saving_a_reference_keeps_the_other_settings_of_the_file(covist, folder, tmp_path):
    file = tmp_path / "covist.json"
    Setup("covist-fixed", 96).save(file)
    ran = covist("concentration", "--images", folder, "--limit", 1, "--save", file)
    assert ran.code == 0 and str(file) in ran.stdout.replace("\n", "")
    saved = Setup.load(file)
    assert str(saved) == "covist-fixed 96" and f"{saved.concentration} over 1 image," in ran.stdout
    assert str(saved.concentration) in covist("vllm-args", "--config", file).stdout


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_images_is_refused(covist, tmp_path, name):
    (tmp_path / "empty").mkdir()
    ran = covist("concentration", "--images", tmp_path / name)
    assert ran.code == 2 and ran.stderr.endswith("is not a folder with images\n") and ran.stderr.count("\n") == 1


def test_a_place_that_cannot_be_written_is_refused_before_a_model_is_loaded(covist, folder, tmp_path):
    ran = covist(
        "concentration", "--model", "nowhere/nothing", "--images", folder, "--save", tmp_path / "no" / "file.json"
    )
    assert ran.code == 2 and "there is no directory" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("model", "suite"), [("tiny", "scenes"), ("tiny-next", "scenes-hd")])
def test_the_references_that_are_shipped_are_those_of_the_suites(model, suite):
    assert Subject(load_model(model)).concentration(load_suite(suite)) == pytest.approx(MEASURED[model], abs=2e-6)
