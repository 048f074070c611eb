"""`covist serve --ray`: what clients see is one server, also while a replica dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import psutil
import pytest
from support.serving import CONCENTRATION, said, shown
from support.serving import serving as serving_here

from covist import tiny
from covist.api.setup import Setup
from covist.serve.spec import ServiceSpec

pytest.importorskip("ray", reason="Ray is not installed; make test-ray has it")
pytestmark = pytest.mark.ray

IMAGE, QUESTION, _ = tiny.demo()
LONG = 400  # tokens of an answer that is still being written when something happens


@pytest.fixture(scope="module")
def server(serve, small_model):
    """Two replicas of the small model, which take small bodies only."""
    return serve(small_model, "--replicas", 2, "--body-bytes", 300_000)


def long_stream(server):
    return server.ask("where ?", max_tokens=LONG, stream=True)


def test_answers_are_those_of_one_process(server, small_model):
    content = [shown(IMAGE), said(QUESTION)]
    asked = [{"max_tokens": 12, "extra_body": {"covist": {"budget": budget}}} for budget in (16, 64, "none")]
    with serving_here(ServiceSpec(small_model, setup=Setup(concentration=CONCENTRATION)).build()) as here:
        expected = [here.ask(content, **options) for options in asked]
    for wanted, options in zip(expected, asked, strict=True):
        found = server.ask(content, **options)
        assert found.choices[0].message == wanted.choices[0].message and found.usage == wanted.usage
        own, theirs = wanted.model_extra["covist"], found.model_extra["covist"]
        assert {**theirs, "seconds": None} == {**own, "seconds": None}


def test_keys_are_asked_for(server):
    with pytest.raises(openai.AuthenticationError):
        server.client("wrong").models.list()
    assert [model.id for model in server.client().models.list()] == ["small"]


def test_refusals_of_replicas_and_of_the_front_have_one_shape(server):
    with pytest.raises(openai.NotFoundError) as refused:
        server.ask(model="another")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.APIStatusError) as refused:
        server.ask("x" * 400_000)
    assert refused.value.status_code == 413 and refused.value.code == "body_too_large"
    with pytest.raises(openai.BadRequestError) as refused:
        server.ask([shown(b"nonsense"), said("what ?")])
    assert "image 1" in refused.value.message


def test_a_stream_says_what_the_whole_answer_says(server):
    options = {"max_tokens": 12, "temperature": 2, "seed": 5, "n": 2}
    whole = server.ask([shown(IMAGE), said(QUESTION)], **options)
    texts = ["", ""]
    for chunk in server.ask([shown(IMAGE), said(QUESTION)], **options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_metrics_are_counted_in_front_and_in_each_replica(server):
    before = server.figures().get("covist_output_tokens_total", 0)
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda number: server.ask(max_tokens=3), range(16)))
    assert server.figures()["covist_output_tokens_total"] == before + 48
    assert server.figures()["covist_replicas"] == 2

    def batches() -> list[float]:
        found = server.figures()
        return [value for name, value in found.items() if name.startswith("covist_batch_size_sum{replica=")]

    server.wait_until(lambda: len(batches()) == 2 and sum(batches()) >= 16)


def running(server) -> float:
    return sum(value for name, value in server.figures().items() if name.startswith("covist_running"))


def test_a_client_that_leaves_frees_its_place_in_the_replica(server):
    stream = long_stream(server)
    next(stream)
    server.wait_until(lambda: running(server) == 1)
    stream.close()
    server.wait_until(lambda: running(server) == 0)


def test_a_replica_that_is_killed_costs_only_its_own_requests_and_comes_back(server):
    outcomes: list[str] = []
    begun = threading.Barrier(9)

    def follow(number: int) -> None:
        stream = long_stream(server)
        next(stream)
        begun.wait()
        try:
            outcomes.append([chunk.choices[0].finish_reason for chunk in stream][-1])
        except openai.APIError as error:
            outcomes.append(error.code)

    victim, survivor = server.replicas()
    with ThreadPoolExecutor(8) as clients:
        followed = [clients.submit(follow, number) for number in range(8)]
        begun.wait()
        os.kill(victim.pid, signal.SIGKILL)
        for one in followed:
            one.result()
    assert sorted(set(outcomes)) == ["length", "replica_lost"], outcomes
    server.wait_until(lambda: server.figures()["covist_replicas"] == 2)
    assert survivor.pid in {replica.pid for replica in server.replicas()}
    assert server.ask().choices[0].message.content is not None


def test_a_request_of_a_replica_that_is_killed_gets_a_clean_503(server):
    server.wait_until(lambda: len(server.replicas()) == 2 and server.figures()["covist_replicas"] == 2)
    body = {"model": server.model, "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 1000}

    def post(number: int) -> httpx.Response:
        key = {"Authorization": f"Bearer {server.client().api_key}"}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=600, headers=key)

    with ThreadPoolExecutor(6) as clients:
        answers = [clients.submit(post, number) for number in range(6)]
        server.wait_until(lambda: running(server) == 6)
        os.kill(server.replicas()[0].pid, signal.SIGKILL)
        found = [answer.result() for answer in answers]
    lost = [answer for answer in found if answer.status_code != 200]
    assert 0 < len(lost) < 6
    for answer in lost:
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert answer.json() == {
            "error": {
                "message": "the replica that answered has died; send the request again",
                "type": "server_error",
                "param": None,
                "code": "replica_lost",
            }
        }


def test_sigterm_lets_a_running_stream_finish_and_leaves_no_process(serve, small_model):
    server = serve(small_model, "--autoscale", "1:2,upscale_delay_s=3600")
    family = psutil.Process(server.process.pid).children(recursive=True)
    stream = long_stream(server)
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    assert server.process.wait() == 0
    assert not psutil.wait_procs(family, timeout=60)[1]
    lines = server.log.read_text().splitlines()
    assert lines[0].startswith("serving small at http://127.0.0.1:")
    assert all(json.loads(line) for line in lines[1:])
