"""A model that reads captions: how likely it finds each word that people wrote, and what it writes itself.

The prompt goes through the model once, and the captions after it, each with a copy of the cache that the prompt has
left. One pass over prompt and caption would let compression see the caption: a method that selects by the text would
select by the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covist.eval.photos.words import words_of
from covist.eval.subject import ItemAnswers, Subject
from covist.eval.suite import HALVES, Item, Suite
from covist.families.registry import family_for
from covist.request.batches import end_tokens, until_end
from covist.request.decoding import generate
from covist.request.inputs import Request
from covist.undo import ReplacedMethod


class PhotoSubject(Subject):
    """A loaded model that can also answer without seeing the image."""

    reference_half = HALVES[0]  # test images are not looked at before their one run

    @contextmanager
    def blinded(self, suite: Suite) -> Iterator[None]:
        """Within the block, every image token is the mean image token of the first development images."""
        mean = self._mean_token(suite)

        def unseen(encode: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            features = encode(*args, **kwargs)
            features.pooler_output = [mean.expand_as(image) for image in features.pooler_output]
            return features

        replaced = ReplacedMethod(family_for(self.model).base, "get_image_features", partial(partial, unseen))
        try:
            yield
        finally:
            replaced.remove()

    @torch.no_grad()
    def _mean_token(self, suite: Suite) -> Tensor:
        means = [
            torch.cat(list(features.pooler_output)).mean(0)
            for item in self.reference_items(suite)
            for features in self.requests(item)[0].encode(self.model).values()
        ]
        return torch.stack(means).mean(0)


class CaptionSubject(PhotoSubject):
    """A loaded model that scores the captions of an item and writes one itself.

    written: by item, the tokens of captions that the uncompressed model has written. Such a caption is only checked, in
        the pass that scores the others: what is said then ends with the first word that differs.
    """

    written: Mapping[int, list[int]] = {}

    def _prepare(self, item: Item) -> list[Request]:
        """One prompt for all captions: they share it word for word."""
        return super()._prepare(replace(item, questions=item.questions[:1]))

    def answer(self, item: Item, requests: Sequence[Request] | None = None) -> ItemAnswers:
        """The caption that the model writes, and the losses of the words of each caption that people wrote."""
        (request,) = self.requests(item) if requests is None else requests
        captions = [question.answers[0] for question in item.questions if question.answers]
        encoded = [self._encode(caption) for caption in captions]
        known = self.written.get(item.number)
        own = self._write(request, item) if known is None else known
        chances = self._chances(request, [*(ids for ids, _ in encoded), own])
        if known is not None:
            own = _until_other(known, chances[-1].argmax(-1).tolist())
        text = self.loaded.processor.batch_decode([own], skip_special_tokens=True)[0]
        losses = [
            self._by_word(caption, ids, spans, (-row[torch.arange(len(ids)), ids]).tolist())
            for caption, (ids, spans), row in zip(captions, encoded, chances, strict=False)
        ]
        return ItemAnswers([text], [own], losses)

    def _write(self, request: Request, item: Item) -> list[int]:
        """The greedy caption, its end included."""
        written = generate(self.model, request.inputs(self.model), self.room(item))
        return until_end(written[-1].tolist(), end_tokens(self.model))

    @torch.no_grad()
    def _chances(self, request: Request, texts: list[list[int]]) -> Tensor:
        """Log-probabilities [texts, longest, words] of the tokens of each text after the prompt."""
        longest, mask = max(map(len, texts)), request.prompts["attention_mask"]
        ids = mask.new_tensor([text + [0] * (longest - len(text)) for text in texts])  # nobody reads what fills a row
        prompt = self.model(**request.inputs(self.model), use_cache=True, logits_to_keep=1)
        every = torch.zeros(len(texts), dtype=torch.long, device=mask.device)
        prompt.past_key_values.reorder_cache(every)  # every text goes on from the same row
        given = ids[:, :-1]
        further = self.model(
            input_ids=given,
            attention_mask=torch.cat([mask[every], torch.ones_like(given)], dim=1),
            past_key_values=prompt.past_key_values,
            use_cache=True,
        )
        return torch.cat([prompt.logits[every], further.logits], dim=1).float().log_softmax(-1).cpu()

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


def _until_other(expected: list[int], chosen: list[int]) -> list[int]:
    """The tokens of a caption that the model would write too, and the first other one.

    >>> _until_other([5, 6, 2], [5, 7, 2])
    [5, 7]
    """
    same = next((place for place, pair in enumerate(zip(expected, chosen, strict=False)) if pair[0] != pair[1]), None)
    return expected if same is None else chosen[: same + 1]
