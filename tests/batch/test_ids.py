"""Ids: each belongs to the first row that has it, also after a restart, also when the file is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.batch.ids import Ids
from covist.batch.rows import Row, read_row


@pytest.fixture
def ids(tmp_path):
    made = Ids(tmp_path / "ids.sqlite")
    yield made
    made.close()


def asking(*pairs: tuple[str, str]) -> list[Row]:
    return [read_row(number, {"id": name, "prompt": prompt}) for number, (name, prompt) in enumerate(pairs)]


def slow_reference(rows: list[Row]) -> list[str]:
    """The ids that stay, by the words of the documentation, with everything in memory."""
    first: dict[str, Row] = {}
    stay = []
    for row in rows:
        name = row.id
        while name in first and first[name].content != row.content:
            name = f"{name}#{row.number + 1}"
        if name not in first:
            first[name] = row
            stay.append(name)
    return stay


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a#3", "a#3#4"]), st.sampled_from("xyz")), max_size=12))
def test_exactly_one_row_stays_for_each_id(tmp_path_factory, pairs):
    rows = asking(*pairs)
    ids = Ids(tmp_path_factory.mktemp("ids") / "ids.sqlite")
    kept = [row.id for row in ids.own(rows)]
    assert kept == slow_reference(rows)
    assert len(set(kept)) == len(kept)
    assert [row.id for row in ids.own(rows)] == kept, "asked again, the rows are the same"
    ids.close()


def test_a_second_row_with_the_same_content_is_left_out(ids):
    assert [row.number for row in ids.own(asking(("a", "x"), ("a", "x"), ("b", "x")))] == [0, 2]


def test_a_second_row_with_other_content_is_an_error_under_its_own_id(ids):
    _, other = ids.own(asking(("a", "x"), ("a", "y")))
    assert other.id == "a#2" and other.error == "id 'a' belongs to row 1, which differs"


def test_owners_are_remembered_and_so_is_how_far_reading_was(ids, tmp_path):
    rows = asking(("a", "x"), ("b", "x"), ("a", "x"))
    ids.own(rows[:2])
    again = Ids(tmp_path / "ids.sqlite")
    assert again.known == 2
    assert again.own(rows[2:]) == [] and again.known == 3
    again.close()


def test_a_damaged_file_is_made_again(tmp_path):
    (tmp_path / "ids.sqlite").write_bytes(b"this is no database" * 100)
    ids = Ids(tmp_path / "ids.sqlite")
    assert ids.known == 0 and len(ids.own(asking(("a", "x")))) == 1
    ids.close()
