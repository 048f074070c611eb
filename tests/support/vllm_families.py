"""Small random models of the families, as vLLM serves them and as transformers runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import transformers

from support.case import SIZES, Case
from support.checkpoints import saved_with
from support.families import smooth_image
from support.vllm_engines import Ask, Engine
from support.vllm_reference import compressed, expected

COVIST: dict[str, Any] = {"budget": 10, "concentration": 0.05}
NARROW: dict[str, Any] = {"max_num_batched_tokens": 96, "max_model_len": 1024, "limit_mm_per_prompt": {"video": 0}}
"""Some images are encoded together, and some are split over steps when all of their tokens stay."""


@dataclass(frozen=True)
class Served:
    """A family in vLLM, and its model in transformers."""

    engine: Engine
    case: Case
    processor: Any
    settings: dict[str, Any]
    columns: int | None = None

    def ask(self, question: str, *images: int, **options: Any) -> Ask:
        prompt = self.case.turn.replace("{}", question.replace("{image}", self.case.image))
        shown = tuple(smooth_image(*SIZES[index], seed=index) for index in images)
        return Ask(prompt, shown, options, ids=tuple(self.processor.tokenizer(prompt).input_ids))

    def compressed(self, asks: list[Ask], **settings: Any) -> list[Any]:
        return compressed(
            self.case.model, self.processor, asks, 6, self.columns, endless=True, **{**self.settings, **settings}
        )

    def plain(self, asks: list[Ask]) -> list[Any]:
        return expected(self.case.model, self.processor, asks, 6, endless=True)

    def generate(self, asks: list[Ask]) -> list[Any]:
        return self.engine.generate(asks, 6, endless=True)


VIDEOS = {
    "internvl": "InternVLVideoProcessor",
    "llava-onevision": "LlavaOnevisionVideoProcessor",
    "qwen2-vl": "Qwen2VLVideoProcessor",
    "qwen2.5-vl": "Qwen2VLVideoProcessor",
    "qwen3-vl": "Qwen3VLVideoProcessor",
    "smolvlm": "SmolVLMVideoProcessor",
}
"""The part of a published checkpoint that small processors for images lack."""


def folder_of(case: Case, folder: Path, **video: Any) -> str:
    """With the processor of images and videos that a published checkpoint has; `video`: settings of that for videos."""
    if case.family == "qwen3-vl":  # transformers knows, vLLM reads it in the checkpoint
        case.model.config.text_config.rope_parameters["mrope_interleaved"] = True
    saved = saved_with(case.model, case.chatting_processor(), folder)
    if case.family in VIDEOS:
        getattr(transformers, VIDEOS[case.family])(**video).save_pretrained(folder)
    return saved


def serve(
    engine: Engine,
    case: Case,
    folder: Path,
    settings: dict[str, Any] | None = None,
    columns: int | None = None,
    video: dict[str, Any] | None = None,
    **options: Any,
) -> Served:
    """An engine with a small model.

    columns: what brings the heads of the case to a width that the CPU's attention has, if the method has a series
    video: settings of the processor for videos
    """
    saved, chosen = folder_of(case, folder, **(video or {})), settings or COVIST
    engine.serve(saved, f"Covist{case.model_class}", chosen, **{**NARROW, **options})
    return Served(engine, case, transformers.AutoProcessor.from_pretrained(saved), chosen, columns)


def a_video(frames: int, width: int, height: int, seed: int = 0) -> tuple[np.ndarray, dict[str, Any]]:
    """Frames, and what a file says about them."""
    images = [np.asarray(smooth_image(width, height, seed + number)) for number in range(frames)]
    told = {"fps": 2.0, "duration": frames / 2, "total_num_frames": frames, "frames_indices": list(range(frames))}
    return np.stack(images), {**told, "video_backend": "opencv", "do_sample_frames": False}
