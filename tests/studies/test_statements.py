"""True and false statements about images."""

import json

import numpy as np
import pytest
from studies.statements import Statement, called_true, judge, nats, read_statements

from covist import tiny
from covist.errors import CovistError
from covist.request.loading import LoadedModel


@pytest.fixture
def folder(tmp_path):
    """Statements about two images; that of a third image is not there."""
    (tmp_path / "images").mkdir()
    for number in range(2):
        tiny.scene_image(tiny.sample_scene(number)).save(tmp_path / "images" / f"{number}.png")
    rows = [
        {"image": f"{number}.png", "caption": "a red circle", "label": number % 2, "relation": "none"}
        for number in (2, 0, 1, 0)
    ]
    (tmp_path / "statements.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_statements_without_an_image_are_left_out(folder):
    found = read_statements(folder)
    assert [(one.image.name, one.is_true) for one in found] == [("0.png", False), ("1.png", True), ("0.png", False)]
    assert read_statements(folder, 2) == found[:2]


@pytest.mark.parametrize("missing", ["statements.jsonl", "images/0.png"])
def test_a_folder_without_statements_or_images_is_refused(folder, missing):
    (folder / missing).unlink()
    if missing.endswith("png"):
        (folder / "images" / "1.png").unlink()
    with pytest.raises(CovistError, match=missing.split("/")[0]):
        read_statements(folder)


def test_a_blind_model_does_not_tell_images_apart(folder, untrained):
    seeing, blind = nats(LoadedModel("own model", *untrained), read_statements(folder))
    assert seeing[0] == pytest.approx(seeing[2]) and seeing[0] != pytest.approx(seeing[1], abs=1e-6)
    assert blind.tolist() == pytest.approx([blind[0]] * 3)


def test_what_exceeds_the_median_of_the_other_half_is_called_true():
    assert called_true(np.array([4.0, 1.0, 0.0, 3.0])).tolist() == [True, False, False, True]


def test_judgements_are_counted_by_what_the_image_gains(tmp_path):
    labels = [True, True, False, False] * 20
    statements = [Statement(tmp_path / f"{number // 2}.png", "", label) for number, label in enumerate(labels)]
    noise = np.random.default_rng(0).normal(size=len(labels))
    judged = judge(statements, noise - np.array(labels) * 3.0, noise)
    assert judged.seeing.value == 100 and judged.true == 50 and judged.images == 40
    assert judged.gain.value == pytest.approx(100 - judged.blind.value) and judged.gain.interval[0] > 20
    assert "80 statements about 40 images" in judged.table
