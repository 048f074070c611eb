"""vLLM's own server with a compressed model, asked through the `openai` client."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from support.vllm_engines import ENVIRONMENT
from support.vllm_reference import compressed

from covist import tiny

pytestmark = pytest.mark.vllm

PATIENCE = 900
"""Seconds: a machine under load must not make a test fail."""
COVIST = {"budget": 64, "concentration": 0.05}


@pytest.fixture(scope="module")
def client(embedded, tmp_path_factory):
    """A server with its default options, but for the permission to let requests choose their budgets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    overrides = {"architectures": ["CovistLlavaForConditionalGeneration"], "covist": COVIST}
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", embedded[2], "--port", str(port)]
    options = ["--hf-overrides", json.dumps(overrides), "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8"]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *options, "--served-model-name", "tiny", "--trust-request-mm-kwargs"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | ENVIRONMENT,
        )
    deadline = time.monotonic() + PATIENCE
    while not answers(f"http://127.0.0.1:{port}/health"):
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(1)
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE)


def answers(address: str) -> bool:
    try:
        return urllib.request.urlopen(address).status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def ask(client: Any, question: str, image: Any = None, **options: Any) -> Any:
    parts: list[dict[str, Any]] = [{"type": "text", "text": question}]
    if image is not None:
        file = io.BytesIO()
        image.save(file, "png")
        address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        parts.insert(0, {"type": "image_url", "image_url": {"url": address}})
    messages = [{"role": "user", "content": parts}]
    return client.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=8, **options)


def test_chats_about_images(client, embedded, asks):
    model, processor, _ = embedded
    scene = tiny.sample_scene(tiny.HELD_OUT_SEEDS[0])
    for one, (ids, _) in zip(
        tiny.questions_for(scene)[:3], compressed(model, processor, asks[:3], **COVIST), strict=True
    ):
        answer = ask(client, one.question, tiny.scene_image(scene))
        assert answer.choices[0].message.content.strip() == processor.decode(ids, skip_special_tokens=True)
        words = processor.tokenizer(tiny.prompt_for(one.question), add_special_tokens=False).input_ids
        assert answer.usage.prompt_tokens == len(words) - 1 + 64


def test_a_request_with_a_budget_of_its_own(client):
    image, question, _ = tiny.demo()
    counts = {
        budget: ask(
            client, question, image, extra_body={"mm_processor_kwargs": {"covist_budget": budget}}
        ).usage.prompt_tokens
        for budget in (64, 48, "100%")
    }
    assert counts[64] - counts[48] == 16 and counts["100%"] - counts[64] == 512


def test_an_impossible_budget_is_a_bad_request(client):
    image, question, _ = tiny.demo()
    with pytest.raises(openai.BadRequestError, match="vLLM fixes the prompt's length before the image is seen"):
        ask(client, question, image, extra_body={"mm_processor_kwargs": {"covist_budget": "auto"}})
    assert ask(client, "is there a square ?").choices[0].message.content
