"""All rooms decode in the same way, whatever the generation settings of a checkpoint say."""

from __future__ import annotations

import ast
import asyncio
import json
from pathlib import Path

import pytest
from support.serving import said, shown

import covist
from covist import tiny
from covist.api.setup import Setup
from covist.batch.rows import read_row
from covist.batch.spec import WorkerSpec
from covist.batch.worker import Worker
from covist.eval import evaluate, tune
from covist.eval.questions import Question
from covist.eval.suite import Item, Suite
from covist.lmms.generation import Generation
from covist.request.answer import ask, compressed
from covist.request.conversations import Conversation
from covist.request.decoding import greedy
from covist.request.inputs import prepare
from covist.request.loading import LoadedModel
from covist.request.together import Together
from covist.serve.schema import ChatRequest
from covist.serve.service import Service

IMAGE, QUESTION, _ = tiny.demo()
TOKENS, BUDGET, CONCENTRATION = 12, 16, 0.05
OWN_SETTINGS = {
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "do_sample": True,
    "temperature": 3.0,
    "top_p": 0.9,
    "top_k": 20,
    "num_beams": 2,
    "min_length": 700,
    "num_return_sequences": 2,
}


@pytest.fixture(scope="module")
def plain() -> LoadedModel:
    """A model without training, which repeats itself, so that a penalty would change what it says."""
    model, processor, clip = tiny.build_random(size=tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3))
    model.generation_config.eos_token_id = None
    return LoadedModel("small", model, processor, clip)


@pytest.fixture
def opinionated(plain, monkeypatch) -> LoadedModel:
    """The same model, whose checkpoint has generation settings of its own."""
    for name, value in OWN_SETTINGS.items():
        monkeypatch.setattr(plain.model.generation_config, name, value)
    return plain


def by_run(loaded, folder) -> str:
    request = prepare(loaded, [IMAGE], QUESTION)
    return ask(loaded, request, Setup("covist-fixed", BUDGET, CONCENTRATION), TOKENS).text


def settings(loaded, folder) -> dict:
    """The arguments that `evaluate` and `tune` share."""
    suite = Suite.of("own", [Item.of(IMAGE, Question(QUESTION))])
    own = Setup(concentration=CONCENTRATION)
    return {"suite": suite, "model": loaded, "max_new_tokens": TOKENS, "config": own, "out": folder}


def stored(folder) -> str:
    line = (folder / "answers" / f"covist-fixed@{BUDGET}.jsonl").read_text().splitlines()[0]
    return json.loads(line)["answers"][0].strip()


def by_eval(loaded, folder) -> str:
    evaluate("covist-fixed", str(BUDGET), **settings(loaded, folder))
    return stored(folder)


def by_tune(loaded, folder) -> str:
    tune(3, budgets=str(BUDGET), **settings(loaded, folder))  # a single image shows no more than 4 %
    return stored(folder)


def by_batch(loaded, folder) -> str:
    IMAGE.save(folder / "image.png")
    setup = Setup(budget=BUDGET, concentration=CONCENTRATION)
    spec = WorkerSpec("small", setup=setup, max_new_tokens=TOKENS)
    worker = Worker(spec, loaded)
    try:
        return worker([read_row(0, {"image": "image.png", "prompt": QUESTION}, folder)])[0].answer
    finally:
        worker.close()


def by_serve(loaded, folder) -> str:
    service = Service(loaded, Setup(budget=BUDGET, concentration=CONCENTRATION))
    messages = [{"role": "user", "content": [shown(IMAGE), said(QUESTION)]}]
    wanted = ChatRequest(model="small", messages=messages, max_tokens=TOKENS)

    async def answer() -> str:
        job, heard = await service.admit(wanted)
        async for index, event in job.follow():
            heard.add(index, event)
        return heard.completion()["choices"][0]["message"]["content"].strip()

    try:
        return asyncio.run(answer())
    finally:
        service.close()


def by_lmms(loaded, folder) -> str:
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}
    with compressed(loaded, Setup("covist-fixed", BUDGET, CONCENTRATION)) as handle:
        posed = Conversation((turn,), (IMAGE,)).pose(loaded)
        options = dict(Generation.of({"max_new_tokens": TOKENS}).options)
        return Together(loaded, handle).answer([posed], **options)[0].text.strip()


@pytest.fixture(scope="module")
def expected(plain) -> str:
    """The likeliest tokens, by a model whose checkpoint says nothing about generation."""
    return by_run(plain, None)


@pytest.mark.parametrize("room", [by_run, by_eval, by_tune, by_batch, by_serve, by_lmms])
def test_every_room_writes_the_likeliest_tokens(room, opinionated, expected, tmp_path):
    assert room(opinionated, tmp_path) == expected


def test_the_settings_of_the_checkpoint_would_change_the_answer(plain, expected):
    request = prepare(plain, [IMAGE], QUESTION)
    for own in ({"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}):
        written = plain.model.generate(**request.inputs(plain.model), **greedy(TOKENS, **own))[:, request.length :]
        assert plain.processor.batch_decode(written, skip_special_tokens=True)[0].strip() != expected


def test_models_write_in_one_place_only():
    """Rooms that called `generate` themselves decoded differently."""
    package = Path(covist.__file__).parent
    callers = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "generate"
    ]
    assert callers == ["request/decoding.py"]
