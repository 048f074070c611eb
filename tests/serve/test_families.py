"""Every family behind the server: a batch of images of any size, of several and of none changes no answer."""

from __future__ import annotations

from functools import partial

import pytest
from support.case import SIZES
from support.cases import FAMILIES, FROZEN
from support.families import smooth_image
from support.serving import Running, ask_at_once, metric, said, serving, shown

from covist import compress
from covist.api.setup import Setup
from covist.request.decoding import generate
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel
from covist.serve.limits import Limits
from covist.serve.service import Service

TOKENS = 5
WORDS = ("what is this ?", "what is the colour of this and that ?")
IMAGES = [smooth_image(*size, seed=seed) for seed, size in enumerate(SIZES)]
FIXED, PRO, PLAIN = {"budget": 4}, {"budget": 6, "strategy": "pro"}, {"budget": "none"}
SHOWN = (
    *((FIXED, indices) for indices in ((0,), (1,), (0, 2), ())),
    *((PRO, indices) for indices in ((2,), (0, 2), ())),
    *((PLAIN, indices) for indices in ((1,), (0, 2))),
)
REQUESTS = [(choice, indices, WORDS[len(indices) % 2]) for choice, indices in SHOWN]


def answer(server: Running, request: tuple) -> str:
    choice, indices, words = request
    content = [*(shown(IMAGES[index]) for index in indices), said(words)]
    completion = server.ask(content, max_tokens=TOKENS, extra_body={"covist": choice})
    assert (completion.covist["visual_tokens"]["before"] > 0) == bool(indices)
    return completion.choices[0].message.content


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_batch_answers_as_each_request_alone_and_as_the_library(case):
    loaded = LoadedModel("small", case.model, case.chatting_processor())
    with serving(Service(loaded, Setup(concentration=FROZEN))) as server:
        together = ask_at_once(server, partial(answer, server), REQUESTS)
        assert metric(server, "covist_batch_size_count") < len(REQUESTS), "nothing was batched"
    one_by_one = Limits(batch_milliseconds=0, batch_size=1)
    with serving(Service(loaded, Setup(concentration=FROZEN), limits=one_by_one)) as server:
        text_alone = {number: answer(server, request) for number, request in enumerate(REQUESTS) if not request[1]}
    for number, request in enumerate(REQUESTS):
        alone = text_alone[number] if number in text_alone else by_the_library(loaded, request)
        assert alone == together[number]


def by_the_library(loaded: LoadedModel, request: tuple) -> str:
    """The answer to a question about images without a server."""
    choice, indices, words = request
    asked = prepare(loaded, [IMAGES[index] for index in indices], words)
    if choice is PLAIN:
        written = generate(loaded.model, asked.inputs(loaded.model), TOKENS)
    else:
        with compress(loaded.model, loaded.processor, concentration=FROZEN, **choice):
            written = generate(loaded.model, asked.inputs(loaded.model), TOKENS)
    return loaded.processor.tokenizer.decode(written[0], skip_special_tokens=True)
