"""What Ray costs and what more processes gain, as ratios within one run (needs covist[ray]).

workers    rows per second of `covist batch` on the embedded model: without Ray, and with one worker and two on Ray,
           counted from the first answers on, so that loading is left out
overhead   microseconds per row, for rows that no model sees: reading, Ray, journals and parts, without and with Ray
replicas   requests per second of `covist serve`: without Ray, with one replica, with two

python benchmarks/cluster.py [--rows 768] [--requests 192] [--clients 16]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core per worker, also without Ray

import httpx
from batch import SEEDS, write_input
from serving import mixed

from covist import tiny
from covist.api.setup import Setup
from covist.batch.drivers import Driver, LocalDriver, Result
from covist.batch.job import run
from covist.batch.manifest import Order
from covist.batch.rows import Block
from covist.batch.spec import Facts, WorkerSpec

BAD_ROWS = 20_000


class Watched:
    """A driver that records the times and numbers of returned answers."""

    def __init__(self, driver: Driver):
        self._driver = driver
        self.seen: list[tuple[float, int]] = []

    def inspect(self, spec: WorkerSpec) -> Facts:
        return self._driver.inspect(spec)

    def run(self, spec: WorkerSpec, blocks: Iterable[Block]) -> Iterator[Result]:
        for result in self._driver.run(spec, blocks):
            self.seen.append((perf_counter(), len(result.answers)))
            yield result

    def rate(self, skipped: int) -> float:
        """Rows per second after the first `skipped` results."""
        (began, _), *rest = self.seen[skipped - 1 :]
        return sum(count for _, count in rest) / (rest[-1][0] - began)


def work(path: Path, driver: Driver, skipped: int) -> float:
    """Rows per second of a job."""
    watched = Watched(driver)
    run(
        Order(path, WorkerSpec(setup=Setup(concentration=0.1), max_new_tokens=8)),
        Path(tempfile.mkdtemp(dir=path.parent)),
        watched,
    )
    return watched.rate(skipped)


def workers(folder: Path, rows: int) -> None:
    """The same rows without Ray, and with one worker and two; then rows without work for the model."""
    from covist.cluster.driver import RayDriver
    from covist.cluster.start import ray_running, reservation_of

    for seed in range(SEEDS):
        tiny.scene_image(tiny.sample_scene(seed)).save(folder / f"{seed}.png")
    path = write_input(folder, rows)
    bad = folder / "bad.jsonl"
    bad.write_text("".join(f'{{"id": {number}}}\n' for number in range(BAD_ROWS)), encoding="utf-8")
    here, here_bad = work(path, LocalDriver(), 1), work(bad, LocalDriver(), 1)
    with ray_running():
        one, two = (work(path, RayDriver(number, reservation_of(2, 2, 0)), number) for number in (1, 2))
        ray_bad = work(bad, RayDriver(1, reservation_of(2, 2, 0)), 1)
    print(f"without Ray: {here:.2f} rows/s; one worker: {one:.2f}; two workers: {two:.2f}")
    print(f"one worker under Ray / without Ray    {one / here:.2f}x")
    print(f"two workers / one worker              {two / one:.2f}x")
    print(f"overhead per row: {1e6 / here_bad:.0f} microseconds without Ray, {1e6 / ray_bad:.0f} with it", flush=True)


@contextmanager
def serving(*options: object) -> Iterator[str]:
    """The address of `covist serve` with these options."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "covist", "serve", "--port", port, "--concentration", 0.05, *options]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            try:
                httpx.get(f"{url}/ready").raise_for_status()
                break
            except httpx.HTTPError:
                sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def answered(requests: int, clients: int, *options: object) -> float:
    """Requests per second; one that fails ends the benchmark."""
    bodies = [{"model": "tiny", **mixed(number, None, {})} for number in range(requests)]
    with (
        serving(*options) as url,
        httpx.Client(timeout=3600, limits=httpx.Limits(max_connections=None)) as http,
        ThreadPoolExecutor(clients) as pool,
    ):

        def ask(body: dict[str, object]) -> None:
            http.post(f"{url}/v1/chat/completions", json=body).raise_for_status()

        list(pool.map(ask, bodies[: 2 * clients]))  # warm
        began = perf_counter()
        list(pool.map(ask, bodies))
        return requests / (perf_counter() - began)


def replicas(requests: int, clients: int) -> None:
    here = answered(requests, clients)
    one, two = (answered(requests, clients, "--ray", "--replicas", number) for number in (1, 2))
    print(f"without Ray: {here:.2f} requests/s; one replica: {one:.2f}; two replicas: {two:.2f}")
    print(f"one replica / without Ray             {one / here:.2f}x")
    print(f"two replicas / one replica            {two / one:.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=768)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        workers(Path(place), options.rows)
    replicas(options.requests, options.clients)


if __name__ == "__main__":
    main()
