"""Rows: an id is what the input says, or follows from the content alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.batch.rows import FIELDS, read_row

VALUES = st.dictionaries(st.sampled_from(FIELDS[1:]), st.text(max_size=8) | st.binary(max_size=8), min_size=1)


@given(VALUES, st.randoms(use_true_random=False))
def test_a_made_id_does_not_depend_on_the_order_or_the_place(values, drawn):
    shuffled = list(values.items())
    drawn.shuffle(shuffled)
    assert read_row(0, values).id == read_row(9, dict(shuffled)).id


@given(VALUES, VALUES)
def test_rows_have_the_same_made_id_only_if_they_ask_the_same(one, other):
    assert (read_row(0, one).id == read_row(0, other).id) == (one == other)


@pytest.mark.parametrize(("given_id", "used"), [("a/b c", "a/b c"), (7, "7"), (0, "0"), (None, None)])
def test_an_id_may_be_text_or_a_number(given_id, used):
    row = read_row(0, {"id": given_id, "image": "a.png"})
    assert row.id == (used or read_row(0, {"image": "a.png"}).id)
    assert row.error is None


@pytest.mark.parametrize("bad", [True, 1.5, ["a"], "\ud800", ""])
def test_a_row_with_an_impossible_id_is_an_error_under_a_made_one(bad):
    row = read_row(3, {"id": bad, "prompt": "what ?"})
    assert row.error == "id must be text or a whole number"
    assert row.id == read_row(9, {"id": bad, "prompt": "what ?"}).id
    assert row.id != read_row(0, {"prompt": "what ?"}).id, "else a good row would be a repetition of it"


@pytest.mark.parametrize("values", [5, "text", None, ["a"]])
def test_a_row_that_is_not_an_object_is_an_error(values):
    assert read_row(0, values).error == "not an object with the fields of a row"


def test_fields_that_are_empty_are_left_out_and_others_are_given_back():
    row = read_row(0, {"id": "a", "image": None, "prompt": "x", "label": 3})
    assert row.content == {"prompt": "x"} and row.given == {"prompt": "x", "label": 3}


def test_a_question_is_a_prompt_where_there_is_none():
    asked = [read_row(0, {"image": "a.png", **own}) for own in ({"question": "why ?"}, {"prompt": "why ?"})]
    assert {row.content["prompt"] for row in asked} == {"why ?"}
    both = read_row(0, {"image": "a.png", "question": "why ?", "prompt": "what ?"})
    assert both.content["prompt"] == "what ?" and both.given["question"] == "why ?"


def test_rows_that_differ_only_in_their_own_fields_are_different_rows():
    one, other = (read_row(0, {"image": "a.png", "prompt": "x", "label": label}) for label in (1, 2))
    assert one.id != other.id and one.digest != other.digest and one.content == other.content


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("a.png", "a.png"),
        ("data:image/png;base64,aGk=", None),
        ("A" * 80, None),
        (b"bytes", None),
        ({"bytes": b"bytes", "path": "a.png"}, "a.png"),
        (["a.png", "A" * 80], ["a.png", None]),
    ],
    ids=str,
)
def test_images_are_given_back_by_their_names_and_never_whole(given, names):
    name = "images" if isinstance(given, list) else "image"
    assert read_row(0, {name: given}).given[name] == names
