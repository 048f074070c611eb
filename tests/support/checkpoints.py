"""The small models of the families as folders on disk, whose answers are words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from support.case import Case
from support.families import VOCABULARY, WORDS


def saved_with(model: Any, processor: Any, folder: Path) -> str:
    """A model and its processor as anybody would save them."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def saved(case: Case, folder: Path) -> str:
    """A checkpoint as anybody would save it; tokens that are no words are never written, so that answers differ."""
    saved_with(case.model, case.chatting_processor(), folder)
    words = {number for word, number in VOCABULARY.items() if word.removeprefix("▁") in WORDS}
    size = case.model.config.get_text_config().vocab_size
    config = GenerationConfig.from_pretrained(folder)
    config.suppress_tokens = sorted({*range(size)} - words)
    config.save_pretrained(folder)
    return str(folder)
