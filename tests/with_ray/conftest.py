"""`covist serve --ray` as a program, with the embedded model or a small one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from support.serving import CONCENTRATION

from covist import tiny

KEY = "hush-hush"
PATIENCE = 600
"""Seconds: a machine under load must not make a test fail."""
HTTP = httpx.Client(timeout=PATIENCE)


@dataclass(frozen=True)
class Program:
    """A server that answers, and its processes."""

    process: subprocess.Popen[bytes]
    port: int
    model: str
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cache  # noqa: B019  # building one takes longer than most answers here
    def client(self, key: str = KEY) -> Any:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    def ask(self, content: Any = "is there a square ?", **options: Any) -> Any:
        messages = [{"role": "user", "content": content}]
        return self.client().chat.completions.create(**{"model": self.model, "messages": messages, **options})

    def replicas(self) -> list[psutil.Process]:
        """The processes that hold a model."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in family if "ServeReplica" in _command(one)]

    def figures(self) -> dict[str, float]:
        lines = HTTP.get(f"{self.url}/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def wait_until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not happened():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.5)

    def is_ready(self) -> bool:
        try:
            return HTTP.get(f"{self.url}/ready").status_code == 200
        except httpx.TransportError:
            return False


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has just ended
        return ""


@contextmanager
def serving(folder: Path, model: str, *options: object) -> Iterator[Program]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log, keys = folder / "log", folder / "keys"
    keys.write_text(KEY)
    command = [sys.executable, "-m", "covist", "serve", "--ray", "--port", port, "--model", model, *options]
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, [*command, "--api-key-file", keys, "--concentration", CONCENTRATION])),
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    program = Program(process, port, Path(model).name, log)
    try:
        program.wait_until(program.is_ready)
        yield program
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> str:
    """The folder of a model without training: it writes nonsense, and as much of it as is asked for."""
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    folder = tmp_path_factory.mktemp("served") / "small"
    tiny.save(model, clip, folder)
    return str(folder)


@pytest.fixture(scope="module")
def serve(tmp_path_factory) -> Iterator[Callable[..., Program]]:
    """Starts servers with options of their own."""
    with ExitStack() as open_servers:
        yield lambda *options: open_servers.enter_context(serving(tmp_path_factory.mktemp("log"), *options))
