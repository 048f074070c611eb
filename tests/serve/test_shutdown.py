"""The end of a server: orderly, within its time, and told to everybody who asks."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.serving import wait_until

from covist.cluster.replica import Replica
from covist.serve import batches
from covist.serve.limits import Limits

BODY = {"model": "small", "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 3}


def status(server, path: str) -> int:
    return httpx.get(f"{server.url}{path}", timeout=600).status_code


def test_while_a_server_drains_it_says_so_and_finishes_what_it_has(serve, hold):
    server = serve(limits=Limits(drain_seconds=600))
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(server.post, BODY)
        wait_until(lambda: server.service._workers.running == 1)
        assert status(server, "/ready") == 200
        server.stop()
        wait_until(lambda: status(server, "/ready") == 503)
        assert status(server, "/health") == 200
        refused = server.post(BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        hold.set()
        assert answer.result().status_code == 200


@pytest.mark.parametrize("count", [1, 3])  # one is running; the others wait
def test_a_request_that_the_shutdown_does_not_wait_for_gets_a_503(serve, hold, count, monkeypatch):
    monkeypatch.setattr(batches, "LAST_STEP_SECONDS", 0.05)
    server = serve(limits=Limits(drain_seconds=0.1, batches=1, batch_size=1))
    with ThreadPoolExecutor(count) as clients:
        answers = [clients.submit(server.post, BODY) for _ in range(count)]
        wait_until(lambda: server.service._workers.running + len(server.service._queue) == count)
        server.stop()
        found = [answer.result() for answer in answers]
    assert [(one.status_code, one.json()["error"]["code"]) for one in found] == [(503, "draining")] * count


def test_a_stream_that_the_shutdown_does_not_wait_for_ends_with_the_reason(serve, small_model, monkeypatch):
    monkeypatch.setattr(batches, "LAST_STEP_SECONDS", 0.05)
    server, calls, go_on = serve(limits=Limits(drain_seconds=0.1)), [], threading.Event()

    def hold_later(*call):
        calls.append(call)
        if len(calls) > 2:
            go_on.wait()

    holding = small_model.model.register_forward_pre_hook(hold_later)
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json={**BODY, "stream": True}, timeout=600
    ) as answer:
        lines = (line for line in answer.iter_lines() if line)
        next(lines)
        server.stop()
        last = list(lines)[-1]
    go_on.set()
    holding.remove()
    assert answer.status_code == 200 and json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"


def test_a_client_that_has_not_sent_its_body_does_not_delay_the_shutdown(serve):
    server = serve(limits=Limits(drain_seconds=0.1, body_seconds=600))
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        wait_until(lambda: server.drain.requests == 1)
        server.stop()
        assert slow.recv(4096).startswith(b"HTTP/1.1 503")


def test_closing_a_service_ends_waiting_requests_and_returns_in_time(serve, hold, monkeypatch):
    monkeypatch.setattr(batches, "LAST_STEP_SECONDS", 0.05)
    server = serve(limits=Limits(drain_seconds=0.1, batches=1, batch_size=1))
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.post, BODY) for _ in range(4)]
        wait_until(lambda: server.service._workers.running + len(server.service._queue) == 4)
        server.service.close()  # the model does not move
        assert len(server.service._queue) == 0
        assert [answer.result().status_code for answer in answers] == [503] * 4
        hold.set()
    wait_until(lambda: not server.service._workers._threads)
    assert not server.service._handle.is_active, "the last thread restores the model"
    assert server.post(BODY).json()["error"]["code"] == "draining"


def test_an_accelerator_error_is_reported_to_the_supervisor_of_the_process(serve, small_model, monkeypatch):
    class Lost(RuntimeError):
        """What torch raises when a device is lost."""

    monkeypatch.setattr("covist.faults.BROKEN", (Lost,))
    server, go_on = serve(limits=Limits(batches=1, batch_size=1)), threading.Event()
    replica = object.__new__(Replica)  # as Ray holds it, without Ray
    replica._service = server.service
    replica.check_health()

    def lose(*call):
        go_on.wait()
        raise Lost("illegal memory access")

    losing = small_model.model.register_forward_pre_hook(lose)
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(server.post, BODY) for _ in range(2)]
        wait_until(lambda: server.service._workers.running + len(server.service._queue) == 2)
        go_on.set()
        found = [answer.result() for answer in answers]
    losing.remove()
    assert [(one.status_code, one.json()["error"]["code"]) for one in found] == [(503, "accelerator_failed")] * 2
    assert (status(server, "/ready"), status(server, "/health")) == (503, 503)
    assert server.post(BODY).status_code == 503
    with pytest.raises(RuntimeError, match="the accelerator failed"):
        replica.check_health()
