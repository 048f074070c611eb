"""How clients reach the server: names, methods, encryption, web pages of other origins, and how it ends."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import openai
import pytest
from support.serving import HTTP, wait_until

from covist import CovistError, tiny
from covist.serve.connections import Tls, checked_origins

PEM = Path(__file__).with_name("localhost.pem")
"""A key and its certificate for localhost, of no use to anyone else."""
QUESTION = {"model": "small", "messages": [{"role": "user", "content": "where ?"}], "max_tokens": 1}


def test_a_model_is_described_by_its_name(server):
    assert server.client().models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt' here; the model is 'tiny'"):
        server.client().models.retrieve("gpt")


def test_the_operator_names_the_model(serve):
    server = serve(name="lab/reader")
    assert [model.id for model in server.client().models.list()] == ["lab/reader"]
    assert HTTP.get(f"{server.url}/v1/models/lab/reader").json()["id"] == "lab/reader"
    assert server.ask(max_tokens=1).model == "lab/reader"
    assert server.post(QUESTION).status_code == 404


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_probes_may_ask_for_the_head_alone(server, path):
    answer = HTTP.head(server.url + path)
    assert answer.status_code == 200 and answer.content == b""


PREFLIGHT = {
    "Origin": "https://app.example.com",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def allowed(answer: httpx.Response) -> str | None:
    return answer.headers.get("access-control-allow-origin")


def test_web_pages_of_other_origins_are_not_let_in_unless_the_operator_says_so(server):
    answer = HTTP.options(f"{server.url}/v1/chat/completions", headers=PREFLIGHT)
    assert answer.status_code == 405 and allowed(answer) is None
    assert allowed(HTTP.get(f"{server.url}/v1/models", headers={"Origin": PREFLIGHT["Origin"]})) is None


def test_web_pages_of_an_allowed_origin_may_ask(serve):
    server = serve(origins=[PREFLIGHT["Origin"]])
    url = f"{server.url}/v1/chat/completions"
    asked = HTTP.options(url, headers=PREFLIGHT)
    assert asked.status_code == 200 and allowed(asked) == PREFLIGHT["Origin"]
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answer = server.post(QUESTION, headers={"Origin": PREFLIGHT["Origin"]})
    assert answer.status_code == 200 and allowed(answer) == PREFLIGHT["Origin"]
    refused = server.post(b"nonsense", headers={"Origin": PREFLIGHT["Origin"]})
    assert refused.status_code == 400 and allowed(refused) == PREFLIGHT["Origin"], "the page must see why"
    other = {**PREFLIGHT, "Origin": "https://evil.example.com"}
    assert allowed(HTTP.options(url, headers=other)) is None


@pytest.mark.parametrize("origin", ["example.com", "https://example.com/", "https://Example.com", "", "null"])
def test_origins_that_no_browser_sends_are_refused_at_the_start(origin):
    with pytest.raises(CovistError, match="--allow-origin"):
        checked_origins([origin])


def test_the_server_encrypts_by_itself(serve):
    port = serve(tls=Tls.read(PEM, None)).port
    trusted = ssl.create_default_context(cafile=str(PEM))
    answer = httpx.post(f"https://localhost:{port}/v1/chat/completions", json=QUESTION, verify=trusted, timeout=300)
    assert answer.status_code == 200


def test_a_certificate_that_cannot_be_used_is_refused_before_a_model_is_loaded(tmp_path):
    nothing, text = tmp_path / "none.pem", tmp_path / "text.pem"
    text.write_text("words")
    with pytest.raises(CovistError, match="--ssl-certfile: .*none.pem cannot be used"):
        Tls.read(nothing, None)
    with pytest.raises(CovistError, match="--ssl-certfile: .*text.pem cannot be used"):
        Tls.read(text, None)
    with pytest.raises(CovistError, match="--ssl-certfile: .*localhost.pem and .*text.pem cannot be used"):
        Tls.read(PEM, text)
    with pytest.raises(CovistError, match="--ssl-keyfile needs --ssl-certfile"):
        Tls.read(None, PEM)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    model.generation_config.eos_token_id = None
    folder = tmp_path_factory.mktemp("served") / "small"
    tiny.save(model, clip, folder)
    return folder


@pytest.fixture
def process(model_folder):
    """`covist serve` in a process of its own, and its address."""
    command = [sys.executable, "-m", "covist", "serve", "--model", str(model_folder), "--port", "0"]
    with subprocess.Popen([*command, "--concentration", "0.05"], stderr=subprocess.PIPE, text=True) as running:
        try:
            told = ""
            while not (found := re.search(r"http://[\d.:]+", told)):
                told = running.stderr.readline()
                assert told
            wait_until(lambda: status(found[0]) == 200 or running.poll() is not None)
            yield running, found[0]
        finally:
            running.kill()


def status(url: str) -> int | None:
    """The status of /ready; None if nobody listens."""
    try:
        return httpx.get(f"{url}/ready", timeout=60).status_code
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_readiness_ends_before_the_port_closes(process, number):
    running, url = process
    running.send_signal(number)
    seen = [200]
    while seen[-1] is not None:
        seen.append(status(url))
    assert 503 in seen, "the port was closed before anyone could see that it would be"


def test_a_second_interrupt_ends_the_process_at_once(process):
    running, url = process
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json={**QUESTION, "max_tokens": 1000, "stream": True}, timeout=300
    ) as answer:
        next(answer.iter_lines())
        running.send_signal(signal.SIGINT)
        wait_until(lambda: status(url) == 503)
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130
    assert "Traceback" not in running.stderr.read()
