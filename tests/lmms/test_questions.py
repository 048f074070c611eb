"""Batches: every question once, those of one task and one way of writing together, long ones first."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from covist.lmms.questions import TaskQuestion, batches


def question(task: str, length: int, tokens: int) -> TaskQuestion:
    return TaskQuestion(task, "test", 0, "x" * length, lambda document: document, {"max_new_tokens": tokens})


QUESTIONS = st.lists(st.builds(question, st.sampled_from("ab"), st.integers(0, 9), st.sampled_from([8, 16])))


@given(QUESTIONS, st.integers(1, 5))
def test_every_question_is_in_one_batch_of_its_kind(questions, size):
    made = list(batches(questions, size))
    assert Counter(number for numbers in made for number in numbers) == Counter(range(len(questions)))
    for numbers in made:
        assert 1 <= len(numbers) <= size
        assert len({questions[number].kind for number in numbers}) == 1


@given(QUESTIONS, st.integers(1, 5))
def test_long_texts_come_first_and_no_batch_is_left_half_full_twice(questions, size):
    kinds: dict[str, list[list[int]]] = {}
    for numbers in batches(questions, size):
        kinds.setdefault(questions[numbers[0]].kind, []).append(numbers)
    for made in kinds.values():
        lengths = [len(questions[number].text) for numbers in made for number in numbers]
        assert lengths == sorted(lengths, reverse=True)
        assert all(len(numbers) == size for numbers in made[:-1])
