"""Batches: nobody's answer depends on neighbours, nobody waits for a whole generation, nobody falls with another."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import openai
import pytest
from support.serving import ask_at_once, metric, posting, said, shown, wait_until

from covist import tiny
from covist.serve.limits import Limits

CHOICES = ({}, {"budget": 16}, {"strategy": "pro"}, {"method": "divprune"}, {"budget": "none"})
BODY = {"model": "small", "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 2}
QUESTIONS = ("is there a square ?", "how many objects are there ?", "what color is the first object ?", "where is it ?")


def mixed(number: int) -> dict:
    """Request number `number` of a storm: images, words, settings and lengths all differ."""
    drawn = random.Random(number)
    images = [shown(tiny.scene_image(tiny.sample_scene(drawn.randrange(50)))) for _ in range(drawn.randrange(3))]
    words = " ".join(drawn.choices(QUESTIONS, k=drawn.randint(1, 4)))
    return {
        "content": [*images, said(words)],
        "max_tokens": drawn.choice((1, 3, 8, 16)),
        "extra_body": {"covist": drawn.choice(CHOICES)},
    }


@pytest.mark.parametrize("count", [24, pytest.param(64, marks=pytest.mark.slow)])
def test_a_storm_of_requests_gets_the_answers_of_each_alone(server, count):
    requests = [mixed(number) for number in range(count)]

    def answer(request):
        completion = server.ask(**request)
        return completion.choices[0].message.content, completion.usage.model_dump()

    before = metric(server, "covist_batch_size_count")
    together = ask_at_once(server, answer, requests)
    assert metric(server, "covist_batch_size_count") - before < count, "nothing was batched"
    assert together == [answer(request) for request in requests]


def test_a_short_answer_overtakes_a_long_one(serve, small_model):
    server, steps = serve(limits=Limits(batch_milliseconds=0)), []

    def look(module, args, kwargs):
        steps.append(kwargs["input_ids"].shape[1])
        if len(steps) == 3 and max(steps[1:]) == 1:  # only the long one is being written: now the short one comes
            wait_until(lambda: len(server.service._queue) == 1 and server.service._workers.turns.waiting > 0)

    looking = small_model.model.register_forward_pre_hook(look, with_kwargs=True)
    with ThreadPoolExecutor(2) as clients:
        long = clients.submit(server.ask, max_tokens=60)
        wait_until(lambda: len(steps) > 0)
        short = clients.submit(server.ask, max_tokens=2)
        assert [long.result().usage.completion_tokens, short.result().usage.completion_tokens] == [60, 2]
    looking.remove()
    prompts = [step for step, length in enumerate(steps) if length > 1]
    assert prompts[0] == 0 and prompts[1] < 10, "the short one should not have waited for the end of the long one"


def test_a_generation_that_breaks_down_fails_alone(serve, small_model):
    server = serve(limits=Limits(batch_milliseconds=0))
    before = server.ask([shown(tiny.demo()[0]), said("where ?")], max_tokens=4).choices
    chunks = iter(server.ask(max_tokens=60, stream=True))
    next(chunks)

    def break_down(*call):
        breaking.remove()
        raise RuntimeError("a secret prompt")

    # After the encoder has spoken and before the decoder hears it, which leaves the most behind.
    breaking = small_model.model.model.multi_modal_projector.register_forward_hook(break_down)
    content = [shown(tiny.demo()[0]), said("where ?")]
    failed = server.post({"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": 4})
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "server_error" and "secret" not in failed.text
    assert sum(bool(chunk.choices[0].finish_reason) for chunk in chunks) == 1
    assert server.ask(content, max_tokens=4).choices == before


def test_what_is_impossible_for_the_images_of_a_request_is_its_own_fault(serve, caplog):
    """CoViST-Pro sees more tokens in its first layers than such a cap allows, which only the prefill finds out."""
    server, content = serve(), [shown(tiny.demo()[0]), shown(tiny.demo()[0]), said("where ?")]
    body = {"model": "small", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    refused = server.post({**body, "covist": {"strategy": "pro", "max_visual_tokens": 2}})
    assert refused.status_code == 400, refused.text
    told = refused.json()["error"]
    assert (told["type"], told["code"]) == ("invalid_request_error", "impossible")
    assert told["message"].startswith("max_visual_tokens=2 is too small for these images")
    assert "generation failed" not in caplog.text
    assert server.post({**body, "covist": {"strategy": "pro"}}).status_code == 200


POISON = "quo vadis ?"


@pytest.fixture
def poisoned(small_model):
    """Makes the model fail at a step of every batch in which somebody says the poisonous words."""
    unknown, hooks = small_model.processor.tokenizer.unk_token_id, []

    def poison(step: int) -> None:
        steps, is_poisoned = [0], [False]

        def fail(module, args, kwargs):
            if kwargs["input_ids"].shape[1] > 1:  # a prompt
                steps[0], is_poisoned[0] = 0, bool((kwargs["input_ids"] == unknown).any())
            if is_poisoned[0] and steps[0] == step:
                raise IndexError("a secret prompt")
            steps[0] += 1

        hooks.append(small_model.model.register_forward_pre_hook(fail, with_kwargs=True))

    yield poison
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("step", [0, 3])
def test_a_row_that_breaks_the_model_costs_itself_alone(serve, poisoned, step):
    """Also if its neighbours, greedy or sampled, were being answered already: nothing is said to them twice."""
    server = serve(limits=Limits(batches=1))
    fields = [{}, {"temperature": 2, "seed": 3}, {"max_tokens": 2}, {"temperature": 1.5}, {}]
    asked = zip((*QUESTIONS[:3], "is there a circle ?", POISON), fields, strict=True)
    bodies = [{"content": words, "max_tokens": 8, **own} for words, own in asked]
    expected = [server.ask(**body).choices[0].message.content for body in bodies[:3]]
    poisoned(step)

    def answer(body: dict) -> str:
        try:
            return "".join(chunk.choices[0].delta.content or "" for chunk in server.ask(**body, stream=True))
        except openai.APIError as error:
            assert "secret" not in str(error)
            return error.code

    heard = ask_at_once(server, answer, bodies)
    assert metric(server, "covist_batch_size_count") == len(expected) + 1, "they did not share a batch"
    assert heard[:3] == expected
    assert heard[3] != "generation_failed" == heard[4]


def test_a_client_that_leaves_a_stream_frees_its_place(serve, small_model):
    server = serve(limits=Limits(output_tokens=100_000, prompt_tokens=8192))
    left, calls = Event(), []

    def hold(*call):
        calls.append(call)
        if len(calls) > 2:
            left.wait()  # otherwise the answer may be complete before a busy machine lets the client look

    holding = small_model.model.register_forward_pre_hook(hold)
    body = {"model": "small", "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 900, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=300) as answer:
        next(answer.iter_lines())  # sent when the request is accepted, which may be before its batch runs
        wait_until(lambda: server.service._workers.running == 1)
    left.set()
    holding.remove()
    wait_until(lambda: server.service._workers.running == 0)
    assert server.ask(max_tokens=1).choices
    assert metric(server, "covist_output_tokens_total") == 1, "the answer went on for nobody"


def test_a_client_that_leaves_while_it_waits_is_not_answered(serve, hold):
    server = serve(limits=Limits(batches=1, batch_milliseconds=0))
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(server.ask, max_tokens=3)
        wait_until(lambda: server.service._workers.running == 1)
        with posting(server, {**BODY, "max_tokens": 300}):
            wait_until(lambda: len(server.service._queue) == 1)
        wait_until(lambda: metric(server, 'covist_refusals_total{reason="disconnected"}') == 1)
        hold.set()
        assert first.result().usage.completion_tokens == 3
    wait_until(lambda: server.service._workers.running + len(server.service._queue) == 0)
    assert metric(server, "covist_output_tokens_total") == 3
    assert metric(server, "covist_batch_size_count") == 1, "a batch ran for nobody"


def test_a_full_queue_is_answered_with_a_retry_time(serve, hold):
    server = serve(limits=Limits(queue=1, batches=1, batch_size=1, batch_milliseconds=0))
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(server.post, BODY)]
        wait_until(lambda: server.service._workers.running == 1)
        answers += [clients.submit(server.post, BODY) for _ in range(7)]
        wait_until(lambda: sum(answer.done() for answer in answers) == 6)  # one runs, one waits
        hold.set()
        found = sorted((answer.result() for answer in answers), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in found] == [200] * 2 + [429] * 6
    assert int(found[-1].headers["Retry-After"]) >= 1
    assert found[-1].json()["error"]["type"] == "rate_limit_error"
    assert server.ask(max_tokens=1).choices


def test_a_request_that_takes_too_long_ends(serve):
    server = serve(limits=Limits(request_seconds=0))
    answer = server.post({"model": "small", "messages": [{"role": "user", "content": "where ?"}]})
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
