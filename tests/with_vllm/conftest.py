"""Engines, and the embedded models as folders that they load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.checkpoints import saved_with
from support.vllm_engines import Ask, Engine

from covist import tiny

SCENES, QUESTIONS = 6, 3


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.close()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory) -> tuple[Any, Any, str]:
    """The embedded LLaVA, its processor, and the folder of both."""
    model, processor, _ = tiny.load()
    return model, processor, saved_with(model, processor, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def asks() -> list[Ask]:
    """Three questions about each of six scenes that the embedded model was not trained on."""
    return [
        Ask(tiny.prompt_for(one.question), (tiny.scene_image(scene),))
        for scene in map(tiny.sample_scene, tiny.HELD_OUT_SEEDS[:SCENES])
        for one in tiny.questions_for(scene)[:QUESTIONS]
    ]
