"""Metrics against literal versions of their definitions, and against examples from where they were defined."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.errors import CovistError
from covist.eval.metrics import METRICS, chosen_letter, edit_distance
from covist.eval.questions import Question, posed
from covist.eval.vqa_text import vqa_normalise

WORDS = st.sampled_from(["red", "blue", "two", "2", "the cat", "cat"])
LETTERS = st.text(alphabet="abAB ", max_size=7)


def score(metric, said, *answers, choices=()):
    return METRICS[metric](said, Question("what is it?", answers, metric, choices=choices))


def test_exact_is_the_best_of_several_answers():
    assert score("exact", " Red. ", "blue", "red") == 1
    assert score("exact", "dark red", "blue", "red") == 0


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (
            "It is a Red  car.",
            "red car",
        ),
        ("no", "no"),
        ("No, it is not", "no"),
        ("it costs $5.50 today", "$5.50"),
    ],
)
def test_contains_finds_an_answer_within_a_sentence(said, right):
    assert score("contains", said, right) == 1


@pytest.mark.parametrize(("said", "right"), [("nothing", "no"), ("redder", "red"), ("car red", "red car"), ("", "no")])
def test_contains_wants_whole_words_in_order(said, right):
    assert score("contains", said, right) == 0


def literal_vqa(said, answers):
    """Every way to leave one person out: min(1, how many of the others said the same / 3), averaged."""
    people = list(range(len(answers)))
    groups = list(combinations(people, len(people) - 1))
    said = vqa_normalise(said)
    return sum(min(1, sum(vqa_normalise(answers[one]) == said for one in group) / 3) for group in groups) / len(groups)


@given(WORDS, st.lists(WORDS, min_size=4, max_size=12))
def test_vqa_accuracy_is_the_mean_over_all_subsets_of_people(said, answers):
    assert score("vqa", said, *answers) == pytest.approx(literal_vqa(said, answers))


@pytest.mark.parametrize(("same", "expected"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (10, 1)])
def test_vqa_accuracy_of_ten_people(same, expected):
    assert score("vqa", "yes", *(["yes"] * same + ["no"] * (10 - same))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The Cat", "cat"),
        ("two dogs", "2 dogs"),
        ("none", "0"),
        ("dont know", "don't know"),
        ("couldn'tve", "couldn't've"),
        ("couldntve", "couldntve"),
        ("1,000", "1000"),
        ("red/blue", "red blue"),
        ("red, blue", "red blue"),
        ("yes.", "yes"),
        ("2.5", "2.5"),
        ("a\nb", "b"),
        ("im", "im"),
    ],
)
def test_answers_are_normalised_as_the_vqa_challenge_does(answer, normal):
    assert vqa_normalise(answer) == normal


@cache
def literal_distance(one, other):
    if not one or not other:
        return len(one) + len(other)
    replaced = literal_distance(one[1:], other[1:]) + (one[0] != other[0])
    return min(replaced, literal_distance(one[1:], other) + 1, literal_distance(one, other[1:]) + 1)


@given(LETTERS, LETTERS)
def test_the_edit_distance_is_levenshteins(one, other):
    assert edit_distance(one, other) == literal_distance(one, other) == edit_distance(other, one)


def literal_anls(said, answers):
    best = 0.0
    for answer in answers:
        one, other = " ".join(said.lower().split()), " ".join(answer.lower().split())
        longest = max(len(one), len(other))
        distance = literal_distance(one, other) / longest if longest else 0.0
        best = max(best, 1 - distance if distance < 0.5 else 0.0)
    return best


@given(LETTERS, st.lists(LETTERS, min_size=1, max_size=3))
def test_anls_is_the_best_similarity_above_a_half(said, answers):
    assert score("anls", said, *answers) == pytest.approx(literal_anls(said, answers))


@pytest.mark.parametrize(("said", "expected"), [("1984", 1), ("1985", 0.75), ("1895", 0), ("", 0), ("19 84", 0.8)])
def test_anls_of_a_year(said, expected):
    assert score("anls", said, "1984") == pytest.approx(expected)


COLOURS = ("red", "blue", "dark blue")


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("B.", "B"),
        ("B. blue", "B"),
        ("The answer is B", "B"),
        ("Answer: B.", "B"),
        ("I would say (B), because it is.", "B"),
        ("blue", "B"),
        ("Dark blue.", "C"),
        ("the red one", "A"),
        ("A cat is there", None),
        ("red or dark green, no: blue", None),
        ("D", None),
        ("", None),
    ],
)
def test_the_chosen_letter_is_found_in_the_answer(said, letter):
    assert chosen_letter(said, COLOURS) == letter
    assert (
        score("choice", said, "blue", choices=COLOURS) == score("choice", said, "B", choices=COLOURS) == (letter == "B")
    )


def test_letters_without_a_list_of_choices():
    assert score("choice", "(C)", "C") == 1 and score("choice", "red", "C") == 0


def test_choices_are_listed_after_the_question():
    asked = posed(Question("which?", "A", choices=("red", "blue")))
    assert asked.splitlines()[:3] == ["which?", "A. red", "B. blue"]
    assert posed(Question("which?", "red")) == "which?"


@pytest.mark.parametrize(
    ("fields", "metric"),
    [
        ({}, "agreement"),
        ({"answers": "red"}, "exact"),
        ({"answers": ["red"] * 9}, "exact"),
        ({"answers": ["red"] * 10}, "vqa"),
        ({"answers": "A", "choices": COLOURS}, "choice"),
    ],
)
def test_a_metric_is_chosen_by_what_is_given(fields, metric):
    question = Question("which?", **fields)
    assert (question.metric, question.family) == (metric, metric)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (
            {"metric": "bleu"},
            "unknown metric 'bleu'; choose one of exact, contains, vqa, anls, choice, agreement, auto",
        ),
        ({"metric": "exact"}, "metric exact needs an answer to compare with; without one use agreement"),
        ({"metric": "vqa", "answers": ["red"] * 3}, "metric vqa needs the answers of 4 people or more"),
        ({"answers": "green", "choices": COLOURS}, "'green' is not a choice; give one of red, blue, dark blue"),
        ({"answers": "green", "metric": "choice"}, "the answer 'green' is not a choice; give a letter"),
        ({"answers": "A", "choices": ["red"] * 27}, "27 choices are too many; at most 26"),
        ({"question": " "}, "the question is empty"),
    ],
)
def test_a_question_that_cannot_be_judged_is_refused_in_one_line(fields, complaint):
    with pytest.raises(CovistError, match=complaint) as caught:
        Question(**{"question": "which?", **fields})
    assert "\n" not in str(caught.value)
