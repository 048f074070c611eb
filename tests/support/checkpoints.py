"""The small models of the families as folders on disk, whose answers are words."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig

from support.case import Case
from support.families import VOCABULARY, WORDS


def saved(case: Case, folder: Path) -> str:
    """A checkpoint as anybody would save it; tokens that are no words are never written, so that answers differ."""
    case.model.save_pretrained(folder)
    case.chatting_processor().save_pretrained(folder)
    words = {number for word, number in VOCABULARY.items() if word.removeprefix("▁") in WORDS}
    size = case.model.config.get_text_config().vocab_size
    config = GenerationConfig.from_pretrained(folder)
    config.suppress_tokens = sorted({*range(size)} - words)
    config.save_pretrained(folder)
    return str(folder)
