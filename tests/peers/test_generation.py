"""The generation behaviours of the installed transformers on compressed models of every family: `make test-peers`.

At full budget every behaviour gives what the plain model gives. At a real budget the greedy run is that of a forward
call without any cache, step by step, and every other behaviour is held to it or to such calls.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from support.cases import FAMILIES, FROZEN
from support.requests import assert_same, greedy, step_logits

import covist

pytestmark = pytest.mark.peers
STEPS = 5


SHORT, LONG = "{image}what is this ?", "what colour is {image}and what is the colour of that ?"


@pytest.fixture(params=FAMILIES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(params=["fixed", "pro"])
def strategy(request):
    return request.param


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def compressed(case: Any, budget: float | int, strategy: str) -> covist.Compression:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no clip= given")
        return covist.compress(
            case.model, case.processor(), budget=budget, strategy=strategy, concentration=FROZEN, instruction="what"
        )


def seeded(model: Any, inputs: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    return greedy(model, inputs, STEPS, do_sample=True, temperature=2.0, **options)


def embedded(case: Any, inputs: Any) -> dict[str, Any]:
    """The same prompt as embeddings, with the ids where the model derives multidimensional positions from them."""
    given = {name: value for name, value in inputs.items() if name != "input_ids" or "image_grid_thw" in inputs}
    return {**given, "inputs_embeds": case.model.get_input_embeddings()(inputs["input_ids"])}


def continued(case: Any, inputs: Any) -> Any:
    """Two answers from one cache: what follows the first is fed again, with the cache."""
    model = case.model
    first = greedy(model, inputs, 2)
    further = torch.cat([first.sequences, inputs["input_ids"][:, -3:]], 1)
    mask = torch.ones_like(further)
    return greedy(model, {"input_ids": further, "attention_mask": mask}, 3, past_key_values=first.past_key_values)


BEHAVIOURS = {
    "greedy": lambda case, inputs: greedy(case.model, inputs, STEPS),
    "greedy without a cache": lambda case, inputs: greedy(case.model, inputs, STEPS, use_cache=False),
    "beams": lambda case, inputs: greedy(case.model, inputs, STEPS, num_beams=3),
    "returned beams": lambda case, inputs: greedy(case.model, inputs, STEPS, num_beams=3, num_return_sequences=2),
    "sampling": lambda case, inputs: seeded(case.model, inputs),
    "sampled beams": lambda case, inputs: seeded(case.model, inputs, num_beams=2),
    "returned samples": lambda case, inputs: seeded(case.model, inputs, num_return_sequences=2),
    "prompt lookup": lambda case, inputs: greedy(case.model, inputs, STEPS, prompt_lookup_num_tokens=2),
    "assisted by itself": lambda case, inputs: greedy(case.model, inputs, STEPS, assistant_model=case.model),
    "embeddings": lambda case, inputs: greedy(case.model, embedded(case, inputs), STEPS),
    "continued from the cache": continued,
    "dictionary with scores": lambda case, inputs: greedy(case.model, inputs, STEPS, output_scores=True),
    "hidden states": lambda case, inputs: greedy(case.model, inputs, STEPS, output_hidden_states=True),
}
IS_GREEDY = (
    "greedy without a cache",
    "prompt lookup",
    "assisted by itself",
    "dictionary with scores",
    "hidden states",
)


@pytest.mark.parametrize("behaviour", BEHAVIOURS.values(), ids=BEHAVIOURS.keys())
def test_full_budget_is_the_plain_model(case, strategy, behaviour):
    inputs = case.ask(SHORT)
    plain = behaviour(case, inputs)
    with compressed(case, 1.0, strategy):
        ours = behaviour(case, inputs)
    assert torch.equal(ours.sequences, plain.sequences)
    torch.testing.assert_close(step_logits(ours), step_logits(plain), atol=1e-4, rtol=1e-4)


def test_left_padded_batch_at_full_budget_is_the_plain_model(case, strategy):
    inputs = case.ask(SHORT, LONG)
    plain = greedy(case.model, inputs, STEPS)
    with compressed(case, 1.0, strategy):
        ours = greedy(case.model, inputs, STEPS)
    assert_same(ours, plain, 1e-4)


@pytest.mark.parametrize("name", IS_GREEDY)
def test_real_budget_gives_the_greedy_run(case, strategy, name):
    inputs = case.ask(SHORT)
    with compressed(case, 8, strategy):
        expected, ours = greedy(case.model, inputs, STEPS), BEHAVIOURS[name](case, inputs)
    assert_same(ours, expected, 1e-4)


def test_real_budget_from_embeddings_gives_the_greedy_run(case):
    """Pro also reads where the instruction stands, which embeddings alone do not say."""
    inputs = case.ask(SHORT)
    with compressed(case, 8, "fixed"):
        expected, ours = greedy(case.model, inputs, STEPS), BEHAVIOURS["embeddings"](case, inputs)
    torch.testing.assert_close(step_logits(ours), step_logits(expected), atol=1e-4, rtol=1e-4)


def uncached_logits(case: Any, inputs: Any, sequence: torch.Tensor) -> torch.Tensor:
    """Logits of the generated tokens [STEPS, vocabulary] of one sequence, each from one forward without a cache."""
    length, rows = inputs["input_ids"].shape[1], []
    for end in range(length, length + STEPS):
        given = {**inputs, "input_ids": sequence[None, :end], "attention_mask": torch.ones(1, end, dtype=torch.long)}
        if "mm_token_type_ids" in inputs:
            types = inputs["mm_token_type_ids"]
            given["mm_token_type_ids"] = torch.cat([types, types.new_zeros(1, end - length)], 1)
        rows.append(case.model(**given, use_cache=False).logits[0, -1])
    return torch.stack(rows)


@pytest.mark.parametrize("name", ["sampling", "returned samples", "greedy"])
def test_real_budget_gives_the_logits_of_uncached_calls(case, strategy, name):
    inputs = case.ask(SHORT)
    with compressed(case, 8, strategy):
        output = BEHAVIOURS[name](case, inputs)
        for index, sequence in enumerate(output.sequences):
            expected = uncached_logits(case, inputs, sequence)
            torch.testing.assert_close(step_logits(output)[:, index], expected, atol=1e-3, rtol=1e-3)


def test_real_budget_scores_beams_as_uncached_calls_do(case, strategy):
    inputs = case.ask(SHORT)
    never = case.model.config.image_token_id
    with compressed(case, 8, strategy):
        beams = greedy(case.model, inputs, STEPS, num_beams=3, num_return_sequences=2, length_penalty=0.0)
        scored = greedy(
            case.model, inputs, STEPS, num_beams=3, num_return_sequences=2, length_penalty=0.0, output_scores=True
        )
        assert torch.equal(beams.sequences, scored.sequences)
        for sequence, score in zip(scored.sequences, scored.sequences_scores, strict=True):
            assert never not in sequence[-STEPS:]
            chosen = uncached_logits(case, inputs, sequence).log_softmax(-1).gather(1, sequence[-STEPS:, None])
            torch.testing.assert_close(score, chosen.sum(), atol=1e-3, rtol=1e-3)


def test_real_budget_in_a_left_padded_batch_gives_what_the_prompts_get_alone(case, strategy):
    with compressed(case, 8, strategy):
        together = step_logits(greedy(case.model, case.ask(SHORT, SHORT.replace("this", "the colour of this")), STEPS))
        alone = step_logits(greedy(case.model, case.ask(SHORT), STEPS))
    torch.testing.assert_close(together[:, 0], alone[:, 0], atol=1e-3, rtol=1e-3)


def test_contrastive_search_is_not_part_of_this_transformers():
    """It moved out of the library; when it comes back, it belongs into the table above."""
    assert not hasattr(FAMILIES[0].model, "_contrastive_search")
