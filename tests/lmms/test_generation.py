"""`generation_kwargs` of tasks, as arguments of `generate`."""

import pytest

from covist import CovistError
from covist.lmms.generation import MAX_NEW_TOKENS, Generation


def options(**given):
    return dict(Generation.of(given).options)


def test_answers_are_greedy_unless_a_task_asks_otherwise():
    made = options()
    assert (made["do_sample"], made["num_beams"], made["max_new_tokens"]) == (False, 1, MAX_NEW_TOKENS)
    assert made["temperature"] is None and made["top_p"] is None


@pytest.mark.parametrize(
    ("given", "sampled", "temperature"),
    [
        ({"temperature": 0}, False, None),
        ({"temperature": 0, "do_sample": True}, False, None),
        ({"temperature": 0.7}, True, 0.7),
        ({"temperature": 0.7, "do_sample": False}, False, None),
        ({"do_sample": True}, True, 1.0),
    ],
)
def test_a_temperature_decides_about_sampling(given, sampled, temperature):
    made = options(**given)
    assert (made["do_sample"], made["temperature"]) == (sampled, temperature)


def test_limits_and_beams_are_handed_on():
    made = options(temperature=1.0, top_p=0.9, top_k=20, num_beams=3, max_new_tokens="16", repetition_penalty=1.1)
    assert (made["top_p"], made["top_k"], made["num_beams"]) == (0.9, 20, 3)
    assert (made["max_new_tokens"], made["repetition_penalty"]) == (16, 1.1)


def test_a_penalty_of_the_checkpoint_does_not_count():
    assert options()["repetition_penalty"] == 1.0


@pytest.mark.parametrize(
    ("until", "text", "cut"),
    [
        (None, " yes\n", "yes"),
        ("\n", "yes\nno", "yes"),
        (["###", "\n"], "yes ### no\n", "yes"),
        (["\n", "###"], "yes ### no\n", "yes"),
        ([""], "yes", "yes"),
    ],
)
def test_an_answer_ends_at_the_first_of_its_ends(until, text, cut):
    assert Generation.of({"until": until}).cut(text) == cut


def test_unused_generation_settings_are_named():
    assert Generation.of({"image_aspect_ratio": "original", "temperature": 0}).ignored == ("image_aspect_ratio",)


def test_several_answers_to_one_request_are_refused():
    with pytest.raises(CovistError, match="--repeats"):
        Generation.of({"num_return_sequences": 2})
