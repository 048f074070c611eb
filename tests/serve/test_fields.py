"""Fields of a request that change how an answer is drawn, and what is told about it."""

from __future__ import annotations

import json
import math

import pytest
from support.letters import writer
from support.serving import CONCENTRATION, said, serving, shown

from covist import tiny
from covist.api.setup import Setup
from covist.serve.limits import Limits
from covist.serve.schema import parse_chat
from covist.serve.service import Service

IMAGE = tiny.demo()[0]


@pytest.fixture(scope="module")
def writing():
    with serving(Service(writer(), Setup(concentration=CONCENTRATION))) as running:
        yield running


def first(completion):
    return completion.choices[0]


def test_log_probabilities_are_told_for_every_token(writing):
    answer = first(writing.ask(max_tokens=6, logprobs=True, top_logprobs=3, temperature=2, seed=1))
    tokens = answer.logprobs.content
    assert "".join(token.token for token in tokens if "\ufffd" not in token.token) in answer.message.content
    assert len(tokens) == 6
    for token in tokens:
        assert token.bytes == list(token.token.encode()) and token.logprob < 0
        chances = [one.logprob for one in token.top_logprobs]
        assert len(chances) == 3 and chances == sorted(chances, reverse=True)
        assert sum(map(math.exp, chances)) < 1 + 1e-6 and token.logprob <= chances[0]


def test_a_greedy_answer_has_the_likeliest_tokens(writing):
    plain, told = writing.ask(max_tokens=6), writing.ask(max_tokens=6, logprobs=True, top_logprobs=1)
    assert first(told).message.content == first(plain).message.content
    assert first(plain).logprobs is None
    for token in first(told).logprobs.content:
        assert token.top_logprobs[0].logprob == token.logprob


def test_log_probabilities_alone_have_no_alternatives(writing):
    tokens = first(writing.ask(max_tokens=2, logprobs=True)).logprobs.content
    assert [token.top_logprobs for token in tokens] == [[], []]


def test_a_stream_tells_the_same(writing):
    options = {"max_tokens": 8, "logprobs": True, "top_logprobs": 2, "temperature": 2, "seed": 3}
    whole = first(writing.ask(**options)).logprobs.content
    streamed = [
        token
        for chunk in writing.ask(**options, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in whole]


def test_penalties_reach_the_answer(writing):
    plain = first(writing.ask(max_tokens=12)).message.content
    assert first(writing.ask(max_tokens=12, extra_body={"repetition_penalty": 10.0})).message.content != plain
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}]}
    own = {"frequency_penalty": 1.5, "presence_penalty": -2, "repetition_penalty": 1.2, "min_p": 0.1, "top_k": 4}
    sampling = writing.service._sampling(parse_chat(json.dumps({**body, **own}).encode()), 0)
    assert {name: getattr(sampling, name) for name in own} == own


def test_a_single_likeliest_token_is_greedy(writing):
    plain = first(writing.ask(max_tokens=8)).message.content
    for own in ({"top_k": 1}, {"min_p": 1.0}):
        assert first(writing.ask(max_tokens=8, temperature=2, extra_body=own)).message.content == plain
    free = first(writing.ask(max_tokens=8, temperature=2, seed=1, extra_body={"top_k": -1, "min_p": 0})).message.content
    assert free == first(writing.ask(max_tokens=8, temperature=2, seed=1)).message.content


# -- how long an answer may be -----------------------------------------------------------------------------------------


def test_more_tokens_than_the_model_has_positions_for_are_clipped(serve):
    long = [*[shown(IMAGE)] * 3, said("where " * 300)]  # so that little is left
    answer = serve().ask(long, max_tokens=10**9)
    assert first(answer).finish_reason == "length" and answer.usage.completion_tokens < 30
    assert answer.usage.total_tokens == 2048


def test_the_operator_may_clip_answers(serve):
    server = serve(limits=Limits(output_tokens=3))
    assert server.ask(max_tokens=4096).usage.completion_tokens == 3
    assert server.ask().usage.completion_tokens == 3


def test_an_answer_is_not_cut_after_a_few_words(serve):
    assert Limits().default_output_tokens == 2048
    assert serve(limits=Limits(default_output_tokens=20)).ask().usage.completion_tokens == 20
