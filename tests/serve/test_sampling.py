"""Temperature, nucleus and seed of every row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covist.serve.sampling import Drawing, RowSampler, Sampling, draw, penalised


def nucleus(logits: list[float], temperature: float, top_p: float) -> dict[int, float]:
    """Literal: the fewest likeliest tokens whose probabilities sum to top_p, and their renormalised probabilities."""
    largest = max(logits)
    weights = [math.exp((logit - largest) / temperature) for logit in logits]
    chances = [weight / sum(weights) for weight in weights]
    kept, total = [], 0.0
    for token in sorted(range(len(logits)), key=lambda token: -chances[token]):
        kept.append(token)
        total += chances[token]
        if total >= top_p:
            break
    return {token: chances[token] / total for token in kept}


@given(
    st.lists(st.floats(-4, 4), min_size=1, max_size=8),
    st.floats(0.1, 2),
    st.floats(0.05, 0.999),
    st.integers(0, 2**63),
)
def test_a_token_comes_from_the_nucleus(logits, temperature, top_p, seed):
    sampling = Sampling(temperature, top_p, seed)
    values = torch.tensor(logits, dtype=torch.float64)
    token = draw(values, sampling, sampling.generator())
    # Sums that are equal but for rounding may end the nucleus one token later.
    assert token in nucleus(values.tolist(), temperature, min(1.0, top_p + 1e-9))


def test_tokens_come_as_often_as_they_should():
    logits, sampling = torch.tensor([1.0, 0.0, -1.0, -3.0]), Sampling(0.8, 0.95, seed=0)
    generator, rounds = sampling.generator(), 4000
    counts = torch.bincount(torch.tensor([draw(logits, sampling, generator) for _ in range(rounds)]), minlength=4)
    for token, chance in nucleus(logits.tolist(), 0.8, 0.95).items():
        error = math.sqrt(chance * (1 - chance) / rounds)
        assert counts[token] / rounds == pytest.approx(chance, abs=4 * error)
    assert counts[3] == 0


def test_a_row_draws_the_same_whoever_its_neighbours_are():
    row, other = Sampling(1.5, 0.9, seed=3), Sampling(1.0, 1.0, seed=4)
    scores = torch.randn(3, 32)
    alone = RowSampler([Drawing(row)])(torch.zeros(1, 1), scores[1:2])
    together = RowSampler([Drawing(other), Drawing(row), Drawing(Sampling())])(torch.zeros(3, 1), scores)
    assert together[1].argmax() == alone[0].argmax()
    assert torch.equal(together[2], scores[2])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.6}, {0}),  # its share is 0.665 of the three, and 0.613 of all
        ({"min_p": 0.3}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 100}, {0, 1, 2, 3}),
    ],
)
def test_unlikely_tokens_are_left_out(options, kept):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])  # chances 0.64, 0.24, 0.09, 0.03
    sampling = Sampling(1.0, seed=0, **options)
    generator = sampling.generator()
    assert {draw(logits, sampling, generator) for _ in range(400)} == kept


def literally_penalised(logits, prompt, answer, repetition, frequency, presence):
    """OpenAI's and transformers' formulas, token by token."""
    made = []
    for token, logit in enumerate(logits):
        if token in prompt or token in answer:
            logit = logit * repetition if logit < 0 else logit / repetition
        made.append(logit - frequency * answer.count(token) - presence * (token in answer))
    return made


@given(
    st.lists(st.floats(-4, 4), min_size=6, max_size=6),
    st.lists(st.integers(0, 5), max_size=4),
    st.lists(st.integers(0, 5), max_size=6),
    st.floats(0.5, 2),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_are_those_of_the_formulas(logits, prompt, answer, repetition, frequency, presence):
    sampling = Sampling(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    values = torch.tensor(logits, dtype=torch.float64)
    expected = literally_penalised(logits, prompt, answer, repetition, frequency, presence)
    assert penalised(values, sampling, prompt, answer).tolist() == pytest.approx(expected)


def test_a_penalty_is_of_one_row_and_of_its_own_tokens():
    scores = torch.tensor([[3.0, 2.0, 0.0]] * 3)
    rows = [
        Drawing(Sampling(frequency_penalty=2.0)),
        Drawing(Sampling()),
        Drawing(Sampling(repetition_penalty=2.0), [0]),
    ]
    rows[0].add(0)
    sampler = RowSampler(rows)
    sampler(torch.zeros(3, 1), scores)  # the first row has its known token again
    drawn = sampler(torch.zeros(3, 1), scores)
    assert drawn.argmax(-1).tolist() == [1, 0, 1]


def test_chances_are_the_models_own_whatever_is_drawn():
    logits = torch.tensor([1.0, 3.0, 2.0])
    row = Drawing(Sampling(repetition_penalty=10.0, logprobs=2), [1])
    assert row.draw(logits) == 2
    chances = logits.double().log_softmax(-1)
    assert row.chances.taken == pytest.approx(float(chances[2]))
    assert [token for token, _ in row.chances.likeliest] == [1, 2]
    assert row.chances.likeliest[0][1] == pytest.approx(float(chances[1]))


def test_an_absent_seed_differs_from_call_to_call():
    assert Sampling(1.0).generator().initial_seed() != Sampling(1.0).generator().initial_seed()
