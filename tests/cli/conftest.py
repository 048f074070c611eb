"""The command line, run as a user would, but inside this process; and a small model folder to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from covist import tiny
from covist.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """The embedded architecture without training: enough for everything but right answers."""
    model, _, (clip, _) = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=4))
    folder = tmp_path_factory.mktemp("model")
    tiny.save(model, clip, folder)
    return folder


@pytest.fixture
def image(tmp_path) -> Path:
    path = tmp_path / "scene.png"
    tiny.demo()[0].save(path)
    return path


@pytest.fixture
def covist(capfd, monkeypatch) -> Callable[..., Ran]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(int(exit_.value.code or 0), captured.out, captured.err)

    return run
