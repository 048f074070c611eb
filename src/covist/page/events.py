"""The handlers of the visitor's actions. They keep no state between calls, so visitors never see each other's data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import time_ns
from typing import Any

import gradio as gr

from covist.page import cards, drawings
from covist.page.asking import UNCOMPRESSED, Reply, as_sentence, ask_together, make_request
from covist.page.choice import COVIST, Choice
from covist.page.examples import Example
from covist.page.methods import describe_method, method_names
from covist.page.uploads import Uploads
from covist.serve.errors import Refusal
from covist.serve.schema import ChatRequest
from covist.serve.service import Service

MOST_COMPARED = 6


@dataclass(frozen=True)
class Events:
    """The handlers of the page for one service."""

    service: Service
    examples: list[Example]
    start: Choice
    tokens: int  # visual tokens of an example
    uploads: Uploads

    def load(self, request: gr.Request) -> tuple[Any, ...]:
        """What the page shows first: the settings of its link, or the first example."""
        choice = self.start.restored(request.query_params, len(self.examples), method_names(), self.tokens)
        place = choice.example or 0
        question = choice.question or self.examples[place].question
        return self.examples[place].path, question, choice.budget, choice.method, choice.strategy, place, time_ns()

    def pick(self, place: int) -> tuple[str, str, int, int]:
        """An example was clicked: returns its image, its question, its number and the current time."""
        return self.examples[place].path, self.examples[place].question, place, time_ns()

    def take(self) -> tuple[None, int]:
        """An image was uploaded, so no example is shown: returns None and the current time."""
        return None, time_ns()

    def describe(self, method: str, strategy: str) -> tuple[Any, str]:
        """Show the strategies if a method has some, and its description."""
        chosen = Choice(method=method, strategy=strategy)
        return gr.update(visible=method == COVIST), describe_method(chosen.method_name)

    async def ask(
        self, image: str | None, question: str, budget: float, method: str, strategy: str, example: int | None
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Both answers as they are generated, then their costs and what was kept."""
        choice = Choice(example, question, int(budget), method, strategy)
        try:
            requests = [self._request(image, question, how) for how in (choice.compression, UNCOMPRESSED)]
        except Refusal as refusal:
            yield (cards.refused_answers(as_sentence(refusal)), *_nothing(drawings.REFUSED))
            return
        notes = cards.unknown_note(self.service.unknown_words(question))
        replies = [Reply(), Reply()]
        yield (cards.answer_cards(choice, replies, notes), *_nothing(drawings.WAITING))
        async for replies in ask_together(self.service, requests):
            yield (cards.answer_cards(choice, replies, notes), *_UNCHANGED)
        result = await asyncio.to_thread(_result, choice, *replies)
        yield (cards.answer_cards(choice, replies, notes), *result)

    async def compare(
        self, image: str | None, question: str, budget: float, methods: list[str], is_open: bool
    ) -> AsyncIterator[Any]:
        """The answers of several methods as they are generated, then what each of them kept; if the tab is open."""
        if not is_open:
            yield gr.skip()
            return
        names = methods[:MOST_COMPARED]
        choices = [Choice.named(name, budget=int(budget)).compression for name in names]
        try:
            requests = [self._request(image, question, how) for how in (UNCOMPRESSED, *choices)]
        except Refusal as refusal:
            yield cards.refusal_card(as_sentence(refusal))
            return
        notes = cards.unknown_note(self.service.unknown_words(question))
        names, replies = ["uncompressed", *names], [Reply()] * len(requests)
        yield _comparison(names, replies, notes)
        async for replies in ask_together(self.service, requests):
            yield _comparison(names, replies, notes)
        drawn = await asyncio.to_thread(lambda: [_drawn(reply) for reply in replies])
        yield cards.compare_grid(list(zip(names, replies, drawn, strict=True)), notes)

    def _request(self, image: str | None, question: str, compression: dict[str, Any]) -> ChatRequest:
        if image is None:
            raise Refusal(400, "no_image", "there is no image yet: drop one, or pick an example")
        if not question.strip():
            raise Refusal(400, "no_question", "there is no question yet: type one")
        return make_request(self.service.name, self.uploads.find(image), question, compression)


_UNCHANGED = (gr.skip(),) * 6
"""The outputs beside the answers, as they are."""


def _nothing(words: str) -> tuple[Any, ...]:
    """The same outputs without an answer: their places stay, so that nothing on the page moves."""
    hidden = gr.update(visible=False)
    return cards.empty_bars(), drawings.empty_drawing(words), hidden, drawings.empty_maps(), "", gr.skip()


def _result(choice: Choice, compressed: Reply, plain: Reply) -> tuple[Any, ...]:
    """Bars, drawing, stages, maps, link and the range of the budget, once both answers are complete."""
    end = compressed.end
    if end is None:
        return _nothing(drawings.REFUSED)
    bars = cards.empty_bars() if plain.end is None else cards.draw_bars(cards.cost_bars(end, plain.end))
    stages = drawings.count_stages(end)
    return (
        bars,
        drawings.draw_kept(end, "ask"),
        gr.update(visible=stages > 1, minimum=1, maximum=max(2, stages), value=1),
        drawings.draw_evidence(end),
        cards.link_line(choice),
        gr.update(maximum=max(2, int(end.cost.visual_tokens))),
    )


def _comparison(names: list[str], replies: list[Reply], notes: list[str]) -> str:
    return cards.compare_grid([(name, reply, "") for name, reply in zip(names, replies, strict=True)], notes)


def _drawn(reply: Reply) -> str:
    end = reply.end
    return "" if end is None or not end.cost.images else drawings.draw_kept(end, "compare")
