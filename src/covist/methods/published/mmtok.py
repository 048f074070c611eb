"""MMTok: tokens that cover both the question's words and the image."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from covist.contract.method import Method
from covist.contract.views import ImageContext
from covist.methods.published import register_published
from covist.methods.relevance import ANSWER_HINTS, embedding_cosines
from covist.methods.shared import cosine, greedy_max_coverage

TEXT_TEMPERATURE, VISUAL_TEMPERATURE, VISUAL_SHARE = 0.02, 0.2, 0.5
STOP_LIST = (
    "a an the is are was were be been do does did can could will would have has had i you he she it we they this that "
    "these those there what which who where when why how and or but if of in on at to for from by with question answer"
    " my your his her its our their as"
)
STOP_WORDS = frozenset(STOP_LIST.split())


@register_published
class MMTok(Method):
    name = "mmtok"
    default_positions = "reindex"

    def select(self, image: ImageContext, count: int) -> Tensor:
        rows = visual_rows(image.signals.hidden)
        cosines = embedding_cosines(image)
        if cosines is not None:
            words = cosines.T[content_words(image.instruction.pieces).to(cosines.device)]
            rows = torch.cat([text_rows(words), rows])
        return greedy_max_coverage(rows, count)


def text_rows(words: Tensor) -> Tensor:
    """P: how the attention of each word would spread over the tokens, from their cosines [m, N]."""
    return torch.softmax(words / TEXT_TEMPERATURE, dim=-1) / len(words)


def visual_rows(hidden: Tensor) -> Tensor:
    """alpha Q: the same with every image token in the role of a word, from encoder features [N, v] -> [N, N]."""
    return VISUAL_SHARE * torch.softmax(cosine(hidden) / VISUAL_TEMPERATURE, dim=-1) / len(hidden)


def content_words(pieces: list[str]) -> Tensor:
    """Indices of the question tokens, given as the text that each adds, that belong to a meaningful word."""
    text = "".join(pieces)
    kept = torch.zeros(len(text), dtype=torch.bool)
    for word in re.finditer(r"\w+", text):
        kept[word.start() : word.end()] = word.group().lower() not in STOP_WORDS
    for hint in ANSWER_HINTS:
        for found in re.finditer(re.escape(hint), text):
            kept[found.start() : found.end()] = False
    places = [bool(part.any()) for part in kept.split([len(piece) for piece in pieces])] if pieces else []
    chosen = torch.tensor(places, dtype=torch.bool).nonzero()[:, 0]
    return chosen if len(chosen) else torch.arange(len(pieces))
