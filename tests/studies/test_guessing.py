import pytest
from studies.guessing import guessed, table, wording

from covist.tiny.films import FILM_FAMILIES, film_questions_for, sample_film
from covist.tiny.questions import Question


def test_names_are_left_out_of_a_wording():
    assert wording("what color is the cross at the end?") == wording("what color is the ring at the end?")
    assert wording("did the digit 5 appear before or after the red object changed?") == (
        "did the * appear before or after the * object changed?"
    )


def test_guessing_gives_the_most_frequent_answer_to_each_wording():
    asked = [Question("digit", "what is the first digit?", answer) for answer in "1123"]
    asked += [Question("digit", "what is the last digit?", "9")]
    assert guessed(asked) == {"digit": pytest.approx(100 * 3 / 5)}


def test_films_leave_little_to_guess():
    found = guessed(item for film in map(sample_film, range(500)) for item in film_questions_for(film))
    assert set(found) == set(FILM_FAMILIES)
    assert found.pop("order") < 70  # many wordings and two answers: 500 films flatter guessing
    assert found.pop("before") < 50
    assert max(found.values()) < 40


def test_the_table_has_the_mean_over_families():
    rows = table({"guessed": {"digit": 10.0, "order": 50.0}}).splitlines()
    assert rows[2:] == ["| digit | 10.0 |", "| order | 50.0 |", "| mean | 30.0 |"]
