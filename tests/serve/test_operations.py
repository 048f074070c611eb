"""What operators see: health, metrics, logs, memory, and an orderly end."""

from __future__ import annotations

import gc
import json
import logging
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest
import torch
from support.serving import said, shown, wait_until

from covist import tiny
from covist.serve.job import LocalJob
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.logs import JsonLines
from covist.serve.sequence import RunningSequence, Sequence

IMAGE, QUESTION, _ = tiny.demo()


def test_health_and_readiness(serve):
    server = serve()
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").status_code == 200
    server.service.is_draining = True
    assert httpx.get(f"{server.url}/ready").status_code == 503
    assert httpx.get(f"{server.url}/health").status_code == 200


def figures(server) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_metrics_count_what_happened(serve):
    server = serve(budget=16)
    server.ask([shown(IMAGE), said(QUESTION)], max_tokens=3)
    server.post(b"nonsense")
    found = figures(server)
    chat = 'path="/v1/chat/completions"'
    assert found[f'covist_requests_total{{{chat},status="200"}}'] == 1
    assert found[f'covist_requests_total{{{chat},status="400"}}'] == 1
    assert found['covist_refusals_total{reason="invalid_json"}'] == 1
    assert found["covist_visual_tokens_saved_total"] == 576 - 16
    assert found["covist_output_tokens_total"] == 3
    assert found["covist_first_token_seconds_count"] == found["covist_batch_size_count"] == 1
    assert found["covist_queue"] == found["covist_running"] == 0
    assert 0 < found['covist_cache_bytes_total{when="after"}'] < found['covist_cache_bytes_total{when="before"}']


def test_metrics_show_how_much_of_the_images_a_budget_covers(serve):
    server = serve(budget=16)
    covered = []
    for more in ({}, {"min_coverage": 0.99}, {"method": "divprune"}):  # DivPrune does not measure it
        content = [shown(IMAGE), said(QUESTION)]
        answer = server.ask(content, max_tokens=1, extra_body={"covist": more})
        covered += [one["missed"] or one["coverage"] for one in answer.model_extra["covist"]["certificates"] if one]
    found = figures(server)
    assert found["covist_coverage_count"] == len(covered) == 2
    assert found["covist_coverage_sum"] == pytest.approx(sum(covered))
    assert found["covist_whole_images_total"] == 1


def test_logs_have_figures_and_neither_prompts_nor_keys(serve, caplog):
    server = serve(keys=Keys(["hush-hush"]))
    caplog.set_level(logging.INFO, "covist.serve")
    messages = [{"role": "user", "content": [shown(IMAGE), said("my secret words")]}]
    server.client("hush-hush").chat.completions.create(model="small", messages=messages, max_tokens=2)
    with pytest.raises(openai.BadRequestError):
        server.client("hush-hush").chat.completions.create(model="small", messages=messages, temperature=5)
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "covist.serve"]
    answered, refused = (json.loads(line) for line in lines)
    assert answered["status"] == 200 and answered["completion_tokens"] == 2 and answered["method"] == "covist-fixed"
    assert refused["status"] == 400 and refused["reason"] == "invalid_request"
    assert not any(word in "".join(lines) for word in ("secret", "hush", "base64"))


def test_one_line_of_the_log_says_that_a_budget_is_above_the_tokens(serve, caplog):
    server = serve(budget=600)
    caplog.set_level(logging.INFO, "covist.serve")
    content = [shown(IMAGE), said(QUESTION)]
    answers = [server.ask(content, max_tokens=1) for _ in range(3)]
    server.ask(content, max_tokens=1, extra_body={"covist": {"budget": "none"}})  # nobody wanted compression
    assert all(one.model_extra["covist"]["visual_tokens"] == {"before": 576, "after": 576} for one in answers)
    told = [record for record in caplog.records if record.getMessage().startswith("not compressed: a budget of all")]
    assert len(told) == 1 and told[0].fields["budget"] == 600


def test_a_budget_below_the_tokens_is_not_mentioned(serve, caplog):
    caplog.set_level(logging.INFO, "covist.serve")
    serve(budget=16).ask([shown(IMAGE), said(QUESTION)], max_tokens=1)
    assert not [record for record in caplog.records if "not compressed" in record.getMessage()]


def test_nothing_of_a_request_stays_behind(serve):
    server = serve(limits=Limits(batches=1))

    def alive() -> dict[str, int]:
        gc.collect()
        found = Counter(map(type, gc.get_objects()))
        return {kind.__name__: found[kind] for kind in (torch.Tensor, Sequence, RunningSequence, LocalJob)}

    def ask(rounds: int) -> dict[str, int]:
        for number in range(rounds):
            choice = {"budget": 16 + number % 3, "method": ("covist-pro", "divprune", "covist-fixed")[number % 3]}
            content = [shown(IMAGE), said(QUESTION)]
            server.ask(content, max_tokens=2, extra_body={"covist": choice})
            server.post(b"nonsense")
        return alive()

    before = ask(9)  # every method has worked
    after = ask(12)
    assert (
        after["Sequence"] == before["Sequence"]
        and after["RunningSequence"] == before["RunningSequence"]
        and after["LocalJob"] == before["LocalJob"]
    )
    assert after["Tensor"] <= before["Tensor"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    folder = tmp_path_factory.mktemp("served") / "small"
    tiny.save(model, clip, folder)
    return folder


def is_there(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=60).status_code == 200
    except httpx.TransportError:  # it does not listen yet
        return False


def test_sigterm_lets_a_running_stream_finish(model_folder):
    command = [sys.executable, "-m", "covist", "serve", "--model", str(model_folder), "--port", "0"]
    process = subprocess.Popen([*command, "--concentration", "0.05"], stderr=subprocess.PIPE)
    try:
        told = []
        while not (found := re.search(r"http://[\d.:]+", told[-1] if told else "")):
            told.append(process.stderr.readline().decode())
            assert told[-1], "".join(told)
        url = found[0]
        wait_until(lambda: is_there(url) or process.poll() is not None)
        body = {
            "model": "small",
            "messages": [{"role": "user", "content": "where ?"}],
            "max_tokens": 300,
            "stream": True,
        }
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] in ("stop", "length")
        assert process.wait() == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/health")
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
