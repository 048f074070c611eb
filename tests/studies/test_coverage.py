"""How much of images a budget covers."""

import numpy as np
import pytest
from PIL import Image
from studies.coverage import Coverage, coverage_of, main

from covist import tiny
from covist.errors import CovistError
from covist.request.loading import LoadedModel


@pytest.fixture
def folder(tmp_path):
    for number in range(2):
        tiny.scene_image(tiny.sample_scene(number)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_more_tokens_cover_more(folder, untrained):
    many, few, level = coverage_of(LoadedModel("own model", *untrained), folder, ("192", "16", "auto:0.5:2:192"))
    assert many.tokens.tolist() == [192, 192] and few.tokens.tolist() == [16, 16]
    assert (many.covered > few.covered).all() and (many.covered <= 100).all()
    assert (level.covered >= 50).all() or (level.tokens == 192).any()


def test_the_table_has_a_row_per_folder_and_budget(folder, capsys):
    Image.new("RGB", (64, 48), (90, 120, 60)).save(folder / "2.png")
    main(["--budgets", "11%,auto", "--limit", "1", str(folder), str(folder)])
    rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 2 + 4 and f"{folder.name}, 1 image" in rows[2] and "| 63 [63, 63] |" in rows[2]


def test_a_method_without_coverage_is_refused(folder, untrained):
    with pytest.raises(CovistError, match="random does not measure coverage"):
        coverage_of(LoadedModel("own model", *untrained), folder, ("16",), "random")


def test_the_tenths_with_least_and_most_are_in_brackets():
    spread = Coverage("charts", "auto", np.arange(11.0), np.arange(11.0))
    assert spread.row == ["charts, 11 images", "auto", "5 [1, 9]", "5 [1, 9]"]
