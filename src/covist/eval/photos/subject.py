"""A model that reads captions: how likely it finds each word that people wrote, and what it writes itself.

A caption is forced upon `generate` word by word after the plain prompt. One pass over prompt and caption would be
faster, but compression would then see the caption: a method that selects by the text would select by the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from covist.errors import CovistError
from covist.eval.photos.words import words_of
from covist.eval.subject import Said, Subject
from covist.eval.suite import HALVES, Item, Suite
from covist.request.batches import end_tokens, until_end
from covist.request.inputs import Request
from covist.request.timing import generate

FREE = -1  # no forced token


class ForcedCaptions(LogitsProcessor):
    """Makes `generate` write given tokens, and keeps how surprising each of them was.

    tokens: [rows, n]; rows of FREE are written by the model itself
    """

    def __init__(self, tokens: Tensor, prompt: int):
        self.tokens, self.prompt = tokens, prompt
        self.losses = torch.zeros(tokens.shape)  # in nats

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt
        if step >= self.tokens.shape[1]:
            return scores
        wanted = self.tokens[:, step].to(scores.device)
        rows = torch.nonzero(wanted != FREE)[:, 0]
        self.losses[rows.cpu(), step] = (
            -scores[rows].float().log_softmax(-1)[torch.arange(len(rows)), wanted[rows]].cpu()
        )
        forced = scores.clone()
        forced[rows] = -torch.inf
        forced[rows, wanted[rows]] = 0.0
        return forced


@dataclass(frozen=True)
class BlindRequest(Request):
    """A request in which every image token is `token`, [width]."""

    token: Tensor

    def encode(self, model: Any) -> dict[str, Any]:
        encoded = super().encode(model)
        for features in encoded.values():
            features.pooler_output = [self.token.expand_as(image) for image in features.pooler_output]
        return encoded


class CaptionSubject(Subject):
    """A loaded model that scores the captions of an item and writes one itself."""

    reference_half = HALVES[0]  # test images are not looked at before their one run
    _blind: Tensor | None = None

    @contextmanager
    def blinded(self, suite: Suite) -> Iterator[None]:
        """Within the block, every image token is the mean image token of the first development images."""
        self._blind = self._mean_token(suite)
        try:
            yield
        finally:
            self._blind = None

    @torch.no_grad()
    def _mean_token(self, suite: Suite) -> Tensor:
        means = [
            torch.cat(list(features.pooler_output)).mean(0)
            for item in self.reference_items(suite)
            for features in self.requests(item)[0].encode(self.model).values()
        ]
        return torch.stack(means).mean(0)

    def answer(self, item: Item, requests: Sequence[Request] | None = None) -> Said:
        """The caption that the model writes, and the losses of the words of each caption that people wrote."""
        ready = self.requests(item) if requests is None else requests
        if len(ready) != 1:
            raise CovistError(f"an image has {len(item.questions) - 1} captions, more than fit in one batch")
        request = ready[0] if self._blind is None else BlindRequest(ready[0].prompts, ready[0].images, self._blind)
        captions = [question.answers[0] for question in item.questions if question.answers]
        encoded = [self._encode(caption) for caption in captions]
        ends = end_tokens(self.model)
        longest = max(len(ids) for ids, _ in encoded)
        rows = [ids + [min(ends)] * (longest + 1 - len(ids)) for ids, _ in encoded]
        forced = ForcedCaptions(torch.tensor([*rows, [FREE] * (longest + 1)]), request.length)
        room = max(longest + 1, self.room(item))
        written = generate(self.model, request, room, logits_processor=LogitsProcessorList([forced]))
        own = until_end(written[-1][: self.room(item)].tolist(), ends)
        text = self.loaded.processor.batch_decode([own], skip_special_tokens=True)[0]
        losses = [
            self._by_word(caption, ids, spans, row)
            for caption, (ids, spans), row in zip(captions, encoded, forced.losses.tolist(), strict=False)
        ]
        return Said([text], [own], losses)

    def _encode(self, caption: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a caption, and where each stands in it."""
        found = self.loaded.processor.tokenizer(caption, add_special_tokens=False, return_offsets_mapping=True)
        return list(found.input_ids), list(found.offset_mapping)

    def _by_word(
        self, caption: str, ids: list[int], spans: list[tuple[int, int]], losses: list[float]
    ) -> list[float | None]:
        """The loss of each word, the sum over its tokens; None for a word that the vocabulary does not hold."""
        unknown = self.loaded.processor.tokenizer.unk_token_id
        made: list[float | None] = []
        for word in words_of(caption):
            places = [place for place, (_, end) in enumerate(spans) if word.start < end <= word.end]
            known = places and unknown not in {ids[place] for place in places}
            made.append(round(sum(losses[place] for place in places), 4) if known else None)
        return made
