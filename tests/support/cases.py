"""LLaVA-NeXT and the Qwen-VL families as cases of the same tests. Compression undoes itself, so a model serves all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from support import families, qwen
from support.families import smooth_image
from support.slow_families import SlowLlavaNext, SlowQwen, SlowQwen2, SlowQwen3

FROZEN = 0.05
"""A concentration reference that makes results independent of the order of tests."""

SIZES = ((131, 170), (60, 300), (190, 95))
"""Width and height of the images in order; the families give them different numbers of tokens."""


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

    def ask(self, *questions: str, images: tuple[int, ...] | None = None) -> Any:
        """Inputs of prompts; `{image}` stands for the next of `images` (indices into SIZES)."""
        count = sum(question.count("{image}") for question in questions)
        chosen = range(count) if images is None else images
        prompts = [self.turn.replace("{}", question) for question in questions]
        return self.encode(prompts, [smooth_image(*SIZES[index], seed=index) for index in chosen])

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


QWEN_TURN = "<|im_start|>user{}<|im_end|><|im_start|>assistant"


def _qwen(name: str, build: Callable[..., Any], slow: type, **options: Any) -> Case:
    build = partial(build, layers=8, **options)
    return Case(name, build, families.qwen_processor, families.qwen_inputs, QWEN_TURN, slow)


def _qwen3(name: str, build: Callable[..., Any], **options: Any) -> Case:
    build = partial(build, layers=8, **options)
    return Case(name, build, qwen.qwen3_vl_processor, qwen.qwen3_vl_inputs, QWEN_TURN, SlowQwen3)


CASES = (
    _next("llava-next multi-head"),
    _next("llava-next grouped-query", kv_heads=2, seed=3),
    _qwen("qwen2.5-vl grouped-query", families.qwen, SlowQwen),
    _qwen("qwen2.5-vl multi-head", families.qwen, SlowQwen, kv_heads=4, seed=3),
    _qwen("qwen2-vl", qwen.qwen2_vl, SlowQwen2),
    _qwen3("qwen3-vl", qwen.qwen3_vl),
    _qwen3("qwen3-vl of experts", qwen.qwen3_vl_moe, kv_heads=4, seed=3),
)
