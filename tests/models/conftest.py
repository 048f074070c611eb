"""The two families as cases of the same tests. Compression is undone exactly, so one model serves the session."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from support import families
from support.families import picture
from support.slow_families import SlowLlavaNext, SlowQwen

import covist

FROZEN = 0.05
"""A concentration reference that makes results independent of the order of tests."""

SIZES = ((131, 170), (60, 300), (190, 95))
"""Width and height of the pictures in order; the families give them different numbers of tokens."""


@dataclass(frozen=True)
class Case:
    """A family with one of its small models."""

    name: str
    build: Callable[[], Any]
    processor: Callable[[], Any]
    encode: Callable[[list[str], list[Any]], Any]
    turn: str  # one user turn, `{}` for what is asked
    slow: type

    @property
    def model(self) -> Any:
        return _built(self.build)

    def ask(self, *questions: str, pictures: tuple[int, ...] | None = None) -> Any:
        """Inputs of prompts; `{image}` stands for the next of `pictures` (indices into SIZES)."""
        count = sum(question.count("{image}") for question in questions)
        chosen = range(count) if pictures is None else pictures
        prompts = [self.turn.replace("{}", question) for question in questions]
        return self.encode(prompts, [picture(*SIZES[index], seed=index) for index in chosen])

    def tokens(self, inputs: Any) -> int:
        """Image tokens in the prompts, markers included."""
        return int((inputs["input_ids"] == self.model.config.image_token_id).sum())


@cache
def _built(build: Callable[[], Any]) -> Any:
    return build()


def _next(name: str, **options: Any) -> Case:
    return Case(
        name,
        partial(families.llava_next, layers=8, **options),
        families.llava_next_processor,
        families.llava_next_inputs,
        "USER: {} ASSISTANT:",
        SlowLlavaNext,
    )


def _qwen(name: str, **options: Any) -> Case:
    return Case(
        name,
        partial(families.qwen, layers=8, **options),
        families.qwen_processor,
        families.qwen_inputs,
        "<|im_start|>user{}<|im_end|><|im_start|>assistant",
        SlowQwen,
    )


CASES = (
    _next("llava-next multi-head"),
    _next("llava-next grouped-query", kv_heads=2, seed=3),
    _qwen("qwen2.5-vl grouped-query"),
    _qwen("qwen2.5-vl multi-head", kv_heads=4, seed=3),
)


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(params=[CASES[0], CASES[2]], ids=lambda case: case.name)
def family(request):
    """One model per family, where the number of key heads does not matter."""
    return request.param


@pytest.fixture(params=["fixed", "pro"])
def strategy(request):
    return request.param


@pytest.fixture
def compress():
    """`covist.compress` of a case with a frozen reference; handles are removed after the test."""
    handles = []

    def start(case, **options):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no clip= given")
            handles.append(covist.compress(case.model, case.processor(), **{"concentration": FROZEN, **options}))
        return handles[-1]

    yield start
    for handle in handles:
        handle.remove()
