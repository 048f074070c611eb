"""Running the blocks of a page in order, in one folder, as a reader would type them.

Three things differ from what a reader does. `covist` commands run inside this process, which saves the imports. A
server listens on a free port instead of the one on the page, and the blocks after it talk to that one. Where a mark
says `runnable with --limit 2`, these words follow each command of its block.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from time import sleep
from urllib.error import URLError
from urllib.request import urlopen

import huggingface_hub.constants
import pytest

import covist
from covist import tiny
from covist.cli import main
from support.pages import ROOT, blocks_of
from support.programs import hear_ctrl_c

SERVERS = ("covist serve ", "vllm serve ", "python -m vllm.entrypoints.openai.api_server ")
SHELL = {"|", "||", "&&", ";", "<", ">", ">>"}
INTERRUPTED = {0, 128 + signal.SIGINT, -signal.SIGINT}
"""How programs end after Ctrl-C."""
USUAL_PORT = "8000"
CLONE = ("benchmarks", "deploy", "examples", "tools")
"""Folders of a clone that commands name."""


def run_page(page: str, kinds: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run those blocks of a page that are of some kinds."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CURL_HOME", str(folder))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(Path(covist.__file__).parents[1]))
    make_stand_ins(folder)
    names: dict[str, object] = {"__name__": "__main__"}
    with closing(Reader()) as reader:
        for block in blocks_of(page):
            if block.kind not in kinds:
                continue
            if block.language == "python":
                exec(compile(reader.redirected(block.code), page, "exec"), names)
            for command in block.commands if block.language == "bash" else ():
                reader.run(command)


def make_stand_ins(folder: Path) -> None:
    """What pages take for granted: images, questions about them, a checkpoint, a script, and the folders of a clone."""
    (folder / "photos").mkdir()
    asked = []
    for seed in range(4):
        scene = tiny.sample_scene(seed)
        name = f"photos/{seed}.jpg"
        tiny.scene_image(scene).save(folder / name, quality=95)
        asked += [(name, question) for question in tiny.questions_for(scene)[:3]]
    tiny.demo()[0].save(folder / "photo.jpg", quality=95)
    labelled = [{"image": name, "question": one.question, "answer": one.answer} for name, one in asked]
    rows = [{"id": f"{row}", "image": name, "prompt": one.question} for row, (name, one) in enumerate(asked)]
    for name, lines in (("mine.jsonl", labelled), ("questions.jsonl", rows)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shutil.copytree(tiny.WEIGHTS, folder / "checkpoint")  # as `save_pretrained` wrote it
    (folder / "my_script.py").write_text("import covist\n")
    for name in CLONE:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".curlrc").write_text("silent\nshow-error\nfail\n")  # otherwise a refusal is a success


class Reader:
    """Somebody who types the commands of a page, with at most one server running."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._ports: tuple[str, str] = (USUAL_PORT, USUAL_PORT)

    def redirected(self, code: str) -> str:
        """With the port that the server really has."""
        page, real = self._ports
        return code.replace(f":{page}", f":{real}")

    def run(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        if f"{' '.join(words)} ".startswith(SERVERS):
            self._serve(words)
        elif words[0] == "covist" and not SHELL & set(words) and "$" not in command:
            with pytest.raises(SystemExit) as exit_:
                main(words[1:])
            assert not exit_.value.code, command
        else:
            subprocess.run(["bash", "-o", "pipefail", "-c", self.redirected(command)], check=True)

    def _serve(self, words: list[str]) -> None:
        """Start a server as a program of its own and wait until it answers."""
        self.close()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self._ports = (words[words.index("--port") + 1] if "--port" in words else USUAL_PORT, port)
        with open("server.log", "wb") as log:
            self._server = subprocess.Popen([*words, "--port", port], stdout=log, stderr=log, preexec_fn=hear_ctrl_c)
        while not _answers(port):
            assert self._server.poll() is None, Path("server.log").read_text()
            sleep(0.1)

    def close(self) -> None:
        """Press Ctrl-C, if a server runs."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.send_signal(signal.SIGINT)
        assert server.wait() in INTERRUPTED, Path("server.log").read_text()


def _answers(port: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
            return True
    except (URLError, ConnectionError, TimeoutError):
        return False
