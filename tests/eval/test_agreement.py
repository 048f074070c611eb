import pytest
from hypothesis import given
from hypothesis import strategies as st

from covist.eval.agreement import same_answer, token_agreement

TOKENS = st.lists(st.integers(0, 3), max_size=6)


def literal_agreement(one, other):
    """Walk along both until they part; what the longer one has left counts as different."""
    longest = max(len(one), len(other))
    if longest == 0:
        return 1.0
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same / longest


@given(TOKENS, TOKENS)
def test_tokens_agree_up_to_the_first_difference(one, other):
    agreement = token_agreement(one, other)
    assert agreement == literal_agreement(one, other) == token_agreement(other, one)
    assert (agreement == 1) == (one == other)


def test_tokens_that_are_equal_after_a_difference_do_not_count():
    assert token_agreement([1, 2, 3, 4], [9, 2, 3, 4]) == 0


@pytest.mark.parametrize(("other", "same"), [("red", True), (" red\n", True), ("Red", False), ("red.", False)])
def test_an_answer_is_the_same_letter_by_letter(other, same):
    assert same_answer("red", other) is same
