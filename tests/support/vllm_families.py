"""Small random models of the families, as vLLM serves them and as transformers runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from support.case import SIZES, Case
from support.checkpoints import saved_with
from support.families import smooth_image
from support.vllm_engines import Ask, Engine
from support.vllm_reference import compressed, expected

COVIST = {"budget": 10, "concentration": 0.05}
NARROW: dict[str, Any] = {"max_num_batched_tokens": 96, "max_model_len": 1024, "limit_mm_per_prompt": {"video": 0}}
"""Some images are encoded together, and some are split over steps when all of their tokens stay."""


@dataclass(frozen=True)
class Served:
    """A family in vLLM, and its model in transformers."""

    engine: Engine
    case: Case
    processor: Any
    columns: int

    def ask(self, question: str, *images: int, **options: Any) -> Ask:
        prompt = self.case.turn.replace("{}", question.replace("{image}", self.case.image))
        return Ask(prompt, tuple(smooth_image(*SIZES[index], seed=index) for index in images), options)

    def compressed(self, asks: list[Ask], **settings: Any) -> list[Any]:
        return compressed(
            self.case.model, self.processor, asks, 6, self.columns, endless=True, **{**COVIST, **settings}
        )

    def plain(self, asks: list[Ask]) -> list[Any]:
        return expected(self.case.model, self.processor, asks, 6, endless=True)

    def generate(self, asks: list[Ask]) -> list[Any]:
        return self.engine.generate(asks, 6, endless=True)


def folder_of(case: Case, folder: Path) -> str:
    """With the processor of images and videos that a published checkpoint has."""
    processor = case.chatting_processor()
    name = {"qwen2.5-vl": "Qwen2_5_VLProcessor", "qwen3-vl": "Qwen3VLProcessor"}.get(case.family)
    if name is not None:
        videos = {"qwen2.5-vl": "Qwen2VLVideoProcessor", "qwen3-vl": "Qwen3VLVideoProcessor"}[case.family]
        parts = {"video_processor": getattr(transformers, videos)(), "chat_template": processor.chat_template}
        processor = getattr(transformers, name)(processor.image_processor, processor.tokenizer, **parts)
    if case.family == "qwen3-vl":  # transformers knows, vLLM reads it in the checkpoint
        case.model.config.text_config.rope_parameters["mrope_interleaved"] = True
    return saved_with(case.model, processor, folder)


def serve(engine: Engine, case: Case, columns: int, folder: Path, **options: Any) -> Served:
    """columns: what brings the heads of the case to a width that the CPU's attention has."""
    saved = folder_of(case, folder)
    engine.serve(saved, f"Covist{case.model_class}", COVIST, **{**NARROW, **options})
    return Served(engine, case, transformers.AutoProcessor.from_pretrained(saved), columns)
