"""Links that restore settings."""

from urllib.parse import parse_qsl

from hypothesis import given
from hypothesis import strategies as st

from covist.page.choice import LONGEST_QUESTION, STRATEGIES, Choice
from covist.page.methods import method_names

EXAMPLES, TOKENS = 6, 576
METHODS = method_names()


def opened(link: str, start: Choice) -> Choice:
    return start.restored(dict(parse_qsl(link.removeprefix("?"))), EXAMPLES, METHODS, TOKENS)


choices = st.builds(
    Choice,
    example=st.integers(0, EXAMPLES - 1),
    question=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80).filter(str.strip),
    budget=st.integers(1, TOKENS),
    method=st.sampled_from(METHODS),
    strategy=st.sampled_from(STRATEGIES),
)


@given(choices)
def test_a_link_restores_what_it_was_made_from(choice):
    start = Choice(strategy=choice.strategy)  # a method without strategies says nothing about one
    assert opened(choice.link, start) == choice


@given(st.dictionaries(st.sampled_from(["example", "budget", "method", "strategy", "question"]), st.text(max_size=20)))
def test_any_link_gives_a_choice_that_can_be_run(query):
    choice = Choice().restored(query, EXAMPLES, METHODS, TOKENS)
    assert 0 <= choice.example < EXAMPLES and 1 <= choice.budget <= TOKENS
    assert choice.method in METHODS and choice.strategy in STRATEGIES


def test_a_link_carries_no_image_of_the_visitor_and_no_endless_question():
    choice = Choice(example=None, question="a" * (2 * LONGEST_QUESTION))
    assert "example" not in choice.link and len(choice.link) < LONGEST_QUESTION + 100


@given(choices)
def test_a_choice_has_the_servers_name_of_its_method(choice):
    back = Choice.named(choice.method_name)
    assert back.method == choice.method
    assert back.method_name == choice.method_name
