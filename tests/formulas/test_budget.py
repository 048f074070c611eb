"""A budget is a value: what it comes to for an image, and that one budget is one value however it is written."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.budget import Ages, Budget, Count, Coverage, Plain, Share, Total, require_room
from covist.errors import CovistError

SHARES = st.floats(0, 1, exclude_min=True).map(Share)
FIXED = st.integers(1).map(Count) | SHARES
LEVELS = st.floats(0, 1, exclude_min=True)
TOTALS = st.integers(1).map(Total) | st.builds(lambda a, b: Total(max(a, b), min(a, b)), *[st.integers(1, 9999)] * 2)


def falling(kind, numbers):
    return st.lists(numbers, min_size=1, max_size=5).map(lambda found: Ages((*map(kind, sorted(found)[::-1]),)))


AGES = falling(Count, st.integers(1)) | falling(Share, LEVELS)
BUDGETS = FIXED | LEVELS.map(Coverage) | st.builds(Coverage, LEVELS, FIXED, FIXED) | st.just(Plain()) | TOTALS | AGES


@pytest.mark.parametrize(
    "written, tokens, expected",
    [
        (64, 576, 64),
        ("64", 576, 64),
        (0.11, 576, 63),
        ("11%", 576, 63),
        ("11.1 %", 576, 64),
        (900, 576, 576),
        ("100%", 576, 576),
        (1.0, 576, 576),
        (1, 576, 1),
        (1e-6, 576, 1),
        ("0.5", 9, 5),
        (np.int64(64), 576, 64),
        (np.float32(0.5), 576, 288),
        ("none", 576, 576),
    ],
)
def test_budgets_are_counts_fractions_or_percentages(written, tokens, expected):
    assert Budget.parse(written).count_for(tokens) == expected


@pytest.mark.parametrize("budget, expected", [(16, 64), ("16", 64), (0.25, 100), ("25%", 100), (200, 400), (1, 4)])
def test_in_a_video_a_count_is_meant_for_each_frame_and_a_share_for_all(budget, expected):
    assert Budget.parse(budget).count_for(tokens=400, frames=4) == expected


@pytest.mark.parametrize(
    "spellings",
    [
        (64, "64", " 64 ", np.int64(64)),
        (0.1, "10%", "0.1", "10.0 %"),
        (1.0, "100%", "1.0"),
        ("auto", "auto:0.9", "auto:90%", " auto : 0.9"),
        ("auto:1:16:50%", "auto:1.0:16:0.5"),
        ("none", " none "),
        ("total:2048", " total : 2048"),
        ("ages:256,128", "ages: 256, 128 "),
        ("ages:50%,10%", "ages:0.5,0.1"),
    ],
)
def test_a_budget_is_one_value_however_it_is_written(spellings):
    assert len({Budget.parse(written) for written in spellings}) == 1


@given(BUDGETS)
def test_the_canonical_spelling_is_read_back(budget):
    assert Budget.parse(str(budget)) == budget
    assert Budget.parse(budget.written) == budget
    assert hash(Budget.parse(str(budget))) == hash(budget)


@given(BUDGETS, st.integers(1, 5000), st.integers(1, 16))
def test_no_budget_gives_an_image_more_tokens_than_it_has_or_none(budget, tokens, frames):
    assert 1 <= budget.count_for(tokens, frames) <= tokens


@pytest.mark.parametrize(
    ("written", "canonical"),
    [(64, 64), (0.11, "11%"), (0.333, "33.3%"), (1.0, "100%"), ("auto", "auto:0.9"), ("auto:1", "auto:1")],
)
def test_json_holds_counts_as_numbers_and_others_as_text(written, canonical):
    assert Budget.parse(written).written == canonical


@pytest.mark.parametrize(
    "budget",
    [0, -5, 0.0, 1.5, 64.0, "0", "0%", "150%", "-3", "many", "automatic", "", "nan", float("nan"), True, None, [64]]
    + ["nan%", "sNaN%", "1e999999999%", "9" * 5000],
)
def test_invalid_budgets_are_refused_with_the_allowed_values(budget):
    with pytest.raises(ValueError, match=r"budget must be a positive number of tokens \(64\), a fraction in \(0, 1\]"):
        Budget.parse(budget)


@pytest.mark.parametrize(
    "budget, level, bounds",
    [
        ("auto", 0.9, (16, 192)),
        (" auto ", 0.9, (16, 192)),
        ("auto:0.9", 0.9, (16, 192)),
        ("auto:90%", 0.9, (16, 192)),
        ("auto:1", 1.0, (16, 192)),
        ("auto:0.9:24:128", 0.9, (24, 128)),
        ("auto:0.9:5%:50%", 0.9, (29, 288)),
        ("auto:0.9:200:128", 0.9, (128, 128)),
        ("auto:0.9:1000:2000", 0.9, (576, 576)),
    ],
)
def test_a_budget_may_follow_the_image_between_bounds(budget, level, bounds):
    found = Budget.parse(budget)
    assert (found.level, found.bounds(576)) == (level, bounds)
    assert found.count_for(576) == bounds[1]


def test_bounds_follow_the_size_of_the_image_and_a_count_the_frames():
    assert Coverage().bounds(2880) == (80, 960)
    assert Coverage().bounds(1) == (1, 1)
    assert Budget.parse("auto:0.9:4:16").bounds(800, frames=8) == (32, 128)


@pytest.mark.parametrize(
    "budget",
    ["auto:", "auto:0", "auto:1.1", "auto:many", "auto:0.9:16", "auto:0.9:0:64", "auto:0.9:a:b", "auto:0.9:1:2:3"],
)
def test_an_invalid_level_or_bound_is_refused_with_the_allowed_values(budget):
    with pytest.raises(ValueError, match=r'"auto:LEVEL:LEAST:MOST" \("auto:0.9:16:192"\), LEVEL in \(0, 1\], got'):
        Budget.parse(budget)


@pytest.mark.parametrize(
    "budget",
    ["total", "total:", "total:0", "total:-1", "total:10%", "total:0.5", "total:many", "total:64:0", "total:64:65"]
    + ["total:64:1:1", "ages", "ages:", "ages:0", "ages:256,", "ages:64,0", "ages:64,128", "ages:64,10%", "ages:5%,6%"],
)
def test_an_invalid_budget_of_a_prompt_is_refused_with_the_allowed_values(budget):
    with pytest.raises(
        CovistError, match=r'"total:TOKENS" or "total:TOKENS:FLOOR" .*"ages:NEWEST,OLDER,\.\.\."'
    ) as error:
        Budget.parse(budget)
    assert "\n" not in str(error.value)


def test_a_total_is_for_all_frames_of_a_video_and_an_age_for_each():
    assert Budget.parse("total:64").count_for(400, frames=4) == 64
    assert Budget.parse("ages:32,16").count_for(400, frames=4) == 128
    assert [Budget.parse("ages:32,16,4").at(age).count_for(400) for age in range(5)] == [32, 16, 4, 4, 4]


@pytest.mark.parametrize("budget, cap, images", [("total:64", None, 64), ("total:64:16", 99, 4), (1, 9, 9)])
def test_a_prompt_with_more_images_than_tokens_is_refused(budget, cap, images):
    require_room(images, Budget.parse(budget), cap)
    with pytest.raises(CovistError, match=f"is not enough for {images + 1} images of at least"):
        require_room(images + 1, Budget.parse(budget), cap)
    require_room(10**6, Budget.parse("ages:2,1"), None)
