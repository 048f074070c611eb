"""Load test of one server process: no request lost or answered twice, latencies, and two ratios of throughput.

    python benchmarks/serving.py                                    200 clients, 2,000 requests, the embedded model
    python benchmarks/serving.py --clients 8 --requests 32          a small run
    python benchmarks/serving.py --geometry llava-1.5-7b --scale 0.1 --clients 16 --requests 64

batched / one at a time: the same requests with the server's batches and with batches of one, one after another.
2 tokens beside 400: how long a short answer takes while a long one is being generated, with and without turns.
compressed / uncompressed: the same requests with the server's budget and with "none".
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as `covist serve` does, before torch starts

import httpx
import numpy as np
import torch
from PIL import Image

from covist import tiny
from covist.api.setup import Setup
from covist.bench.random_models import build_random
from covist.request.loading import LoadedModel, load_model
from covist.serve.limits import Limits
from covist.serve.server import build_server
from covist.serve.service import Service

LONG = 400  # tokens of a long answer, which must not delay others
QUESTIONS = ("is there a square ?", "how many objects are there ?", "what color is the first object ?", "where is it ?")


def geometry_model(name: str, scale: float) -> LoadedModel:
    """A random model of a published LLaVA-1.5 geometry that reads the words of the embedded model."""
    random_model = build_random(name, scale)
    processor = tiny.load()[1]
    config = random_model.model.config
    side = config.vision_config.image_size
    processor.image_processor.size = processor.image_processor.crop_size = {"height": side, "width": side}
    processor.patch_size = config.vision_config.patch_size
    # The placeholder of the embedded tokenizer replaces that of the random model.
    config.image_token_id = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    return LoadedModel(name, random_model.model, processor, random_model.clip)


def data_url(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def mixed(number: int, side: int | None, choice: dict[str, Any]) -> dict[str, Any]:
    """Request number `number`, with random numbers of images and random lengths of question and answer."""
    drawn = random.Random(number)
    parts: list[dict[str, Any]] = []
    for _ in range(drawn.choice((0, 1, 1, 1, 2)) if side is None else 1):
        seed = drawn.randrange(200)
        image = tiny.scene_image(tiny.sample_scene(seed)) if side is None else noise(seed, side)
        parts.append({"type": "image_url", "image_url": {"url": data_url(image)}})
    parts.append({"type": "text", "text": " ".join(drawn.choices(QUESTIONS, k=drawn.randint(1, 6)))})
    return {
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": drawn.choice((1, 4, 8, 24)),
        "covist": choice,
    }


def noise(seed: int, side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8))


@contextmanager
def serving(loaded: LoadedModel, limits: Limits) -> Iterator[tuple[str, str]]:
    """Address and model name of a running server."""
    service = Service(loaded, Setup(concentration=0.05), limits=limits)
    server = build_server(service)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", service.name
        finally:
            server.should_exit = True
            thread.join()


def storm(loaded: LoadedModel, limits: Limits, requests: list[dict[str, Any]], clients: int) -> dict[str, Any]:
    """Send all requests from so many clients; each must be answered once."""
    with (
        serving(loaded, limits) as (url, name),
        httpx.Client(timeout=3600, limits=httpx.Limits(max_connections=None)) as http,
    ):

        def ask(request: dict[str, Any]) -> tuple[float, str, str]:
            began = perf_counter()
            answer = http.post(f"{url}/v1/chat/completions", json={"model": name, **request})
            if answer.status_code != 200:
                return perf_counter() - began, f"refused {answer.status_code} {answer.text[:80]}", ""
            body = answer.json()
            return perf_counter() - began, body["id"], body["choices"][0]["message"]["content"]

        ask(requests[0])  # warm
        before, began = resident(), perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, requests))
        took = perf_counter() - began
        after = resident()
    seconds = [one[0] for one in found]
    ids = [one[1] for one in found if not one[1].startswith("refused")]
    return {
        "seconds": took,
        "rate": len(requests) / took,
        "p50": float(np.percentile(seconds, 50)),
        "p99": float(np.percentile(seconds, 99)),
        "lost": len(requests) - len(ids),
        "twice": len(ids) - len(set(ids)),
        "memory": (before, after),
        "answers": [one[2] for one in found],
        "problems": sorted({one[1] for one in found if one[1].startswith("refused")})[:3],
    }


def blocking(loaded: LoadedModel, batches: int, shorts: int = 20) -> tuple[float, float]:
    """Median seconds of a short answer alone, and while a long one is being generated."""
    with (
        serving(loaded, Limits(batches=batches, batch_milliseconds=0)) as (url, name),
        httpx.Client(timeout=3600) as http,
    ):

        def ask(tokens: int) -> float:
            began = perf_counter()
            request = {"model": name, "messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": tokens}
            http.post(f"{url}/v1/chat/completions", json=request).raise_for_status()
            return perf_counter() - began

        ask(2)  # warm
        alone = float(np.median([ask(2) for _ in range(shorts)]))
        beside = []
        with ThreadPoolExecutor(1) as long_client:
            while len(beside) < shorts:
                long = long_client.submit(ask, LONG)
                sleep(5 * alone)  # until it has begun
                while not long.done() and len(beside) < shorts:
                    beside.append(ask(2))
        return alone, float(np.median(beside))


def memory(name: str, rounds: int = 10) -> list[int]:
    """Memory in MiB of a server in its own process, after every 100 requests of mixed sizes and settings."""
    choices = ({}, {"budget": 16}, {"strategy": "pro"}, {"method": "divprune"}, {"budget": "none"})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "covist", "serve", "--model", name, "--port", str(port), "--concentration", "0.05"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    held = []
    try:
        with httpx.Client(timeout=3600) as http, ThreadPoolExecutor(16) as pool:
            while True:
                try:
                    http.get(f"http://127.0.0.1:{port}/ready").raise_for_status()
                    break
                except httpx.TransportError:
                    sleep(0.2)

            def ask(number: int) -> None:
                request = {"model": name, **mixed(number, None, choices[number % len(choices)])}
                http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=request).raise_for_status()

            for block in range(rounds):
                list(pool.map(ask, range(100 * block, 100 * block + 100)))
                held.append(round(resident(process.pid)))
    finally:
        process.terminate()
        process.wait()
    return held


def resident(process: int | str = "self") -> float:
    """Memory of a process in MiB (this one includes the clients); 0 if the system does not report it."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text(encoding="ascii").splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def tell(name: str, result: dict[str, Any]) -> None:
    before, after = result["memory"]
    print(
        f"{name:24} {result['rate']:7.1f} requests/s   p50 {result['p50'] * 1000:7.0f} ms   p99 "
        f"{result['p99'] * 1000:7.0f} ms   lost {result['lost']}   twice {result['twice']}   "
        f"memory {before:.0f} -> {after:.0f} MiB",
        *result["problems"],
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--geometry", help="a random model of this LLaVA-1.5 geometry instead of the embedded one")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=Limits().batch_size)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loaded = load_model() if arguments.geometry is None else geometry_model(arguments.geometry, arguments.scale)
    side = None if arguments.geometry is None else loaded.model.config.vision_config.image_size
    room: dict[str, Any] = {"queue": arguments.requests, "request_seconds": 3600.0}
    together = Limits(batch_size=arguments.batch_size, **room)
    alone = Limits(batch_size=1, batches=1, batch_milliseconds=0, **room)

    def run(name: str, limits: Limits, choice: dict[str, Any]) -> dict[str, Any]:
        requests = [mixed(number, side, choice) for number in range(arguments.requests)]
        result = storm(loaded, limits, requests, arguments.clients)
        tell(name, result)
        return result

    endless = load_model()  # a long answer has exactly the requested length
    endless.model.generation_config.eos_token_id = None
    for batches in (Limits().batches, 1):
        by_itself, beside = blocking(endless, batches)
        print(f"2 tokens beside {LONG}, at most {batches} batches: {beside / by_itself:.1f}x of alone", flush=True)
    if side is None:
        print("server's memory in MiB every 100 requests:", *memory(loaded.name), flush=True)
    batched, single = run("compressed, batched", together, {}), run("compressed, one by one", alone, {})
    plain = run("uncompressed, batched", together, {"budget": "none"})
    print(f"batched / one at a time      {batched['rate'] / single['rate']:.2f}x")
    print(f"compressed / uncompressed    {batched['rate'] / plain['rate']:.2f}x")
    same = sum(one == other for one, other in zip(batched["answers"], single["answers"], strict=True))
    print(f"same answers batched and alone: {same} of {arguments.requests}")
    failed = any(result["lost"] or result["twice"] for result in (batched, single, plain))
    return int(failed or same < arguments.requests)


if __name__ == "__main__":
    sys.exit(main())
