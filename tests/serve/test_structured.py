"""Answers that must be JSON, and tools: as OpenAI's client asks for them, and as attackers do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from pydantic import BaseModel, Field
from support.letters import TOOL_TEMPLATE, writer
from support.serving import CONCENTRATION, Running, ask_at_once, metric, said, serving, shown

from covist import tiny
from covist.api.setup import Setup
from covist.serve.service import Service

IMAGE, QUESTION, _ = tiny.demo()


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Place(BaseModel):
    row: int = Field(ge=0, le=9)
    side: Literal["left", "right"]


class Finding(BaseModel):
    """Short whatever an untrained model writes."""

    colour: Colour
    is_large: bool
    places: list[Place] = Field(max_length=2)
    best: Place | None


@pytest.fixture(scope="module")
def writing():
    with serving(Service(writer(), Setup(concentration=CONCENTRATION))) as running:
        yield running


def schema_format(schema: dict[str, Any], strict: bool | None = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "one", "schema": schema, "strict": strict}}


def text(completion: Any) -> str:
    return completion.choices[0].message.content


def test_the_client_parses_what_it_asked_for(writing):
    answer = writing.client().chat.completions.parse(
        model="writer",
        messages=[{"role": "user", "content": [shown(IMAGE), said(QUESTION)]}],
        response_format=Finding,
        n=2,
        temperature=2,
        seed=1,
    )
    found = [choice.message.parsed for choice in answer.choices]
    assert all(isinstance(one, Finding) for one in found)
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]


@pytest.mark.parametrize("strict", [True, False, None])
def test_answers_follow_the_schema_strict_or_not(writing, strict):
    schema = Finding.model_json_schema()
    for seed in range(3):
        answer = writing.ask(temperature=2, seed=seed, response_format=schema_format(schema, strict))
        jsonschema.validate(json.loads(text(answer)), schema)


def test_a_json_object_is_one(writing):
    answer = writing.ask(response_format={"type": "json_object"}, max_tokens=40, temperature=2, seed=3)
    assert text(answer).startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text(answer)), dict)


def test_a_stream_of_json_is_the_whole_answer(writing):
    options = {"response_format": schema_format(Finding.model_json_schema()), "temperature": 2, "seed": 7}
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in writing.ask(stream=True, **options))
    assert json.loads(streamed) == json.loads(text(writing.ask(**options)))


def test_rows_with_and_without_a_format_share_a_batch(writing):
    schema = schema_format({"enum": ["red", "blue"]})
    requests = [
        {"max_tokens": 12},
        {"response_format": schema},
        {"max_tokens": 12, "temperature": 2, "seed": 4, "frequency_penalty": 1.5},
        {"response_format": schema, "temperature": 2, "seed": 5, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 12, "extra_body": {"repetition_penalty": 1.5}},
    ]

    def answer(request: dict[str, Any]) -> str:
        return text(writing.ask(**request))

    before = metric(writing, "covist_batch_size_count")
    together = ask_at_once(writing, answer, requests)
    assert metric(writing, "covist_batch_size_count") == before + 1
    assert together == [answer(request) for request in requests]
    assert {json.loads(together[1]), json.loads(together[3])} <= {"red", "blue"}


def test_a_keyword_that_cannot_be_enforced_is_refused_only_if_the_schema_is_strict(writing):
    schema = {"type": "integer", "minimum": 1, "maximum": 3, "not": {"const": 2}}
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}]}
    refused = writing.post({**body, "response_format": schema_format(schema)})
    assert refused.status_code == 400 and "not" in refused.json()["error"]["message"]
    assert json.loads(text(writing.ask(response_format=schema_format(schema, strict=False)))) in (1, 2, 3)


def refs(count: int, make: Any) -> dict[str, Any]:
    chain = {f"d{number}": make({"$ref": f"#/$defs/d{number + 1}"}) for number in range(count)}
    return {"$defs": {**chain, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


HOSTILE = {
    "deep": refs(1500, lambda inner: {"anyOf": [inner]}),
    "nested": json.loads('{"items":' * 120 + "{}" + "}" * 120),
    "numbers": {"type": "integer", "allOf": [{"multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]},
    "endless": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself": {"$ref": "#"},
    "enum": {"enum": [f"value {number}" for number in range(20_000)]},
    "product": {"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(6)]} for a in range(20)]},
    "brackets": {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000},
    "look": {"type": "string", "pattern": "^(?!.*a.{20}).*$"},
    "address": {"$ref": "http://169.254.169.254/latest"},
    "file": {"$ref": "file:///etc/passwd"},
    "type": {"type": "strang"},
}


@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_hostile_schemas_are_refused_in_one_line_and_the_server_goes_on(writing, schema):
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}], "response_format": schema_format(schema)}
    answer = writing.post(json.dumps(body).encode())
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "response_format", error
    assert error["message"].startswith("response_format: ") and "\n" not in error["message"]
    assert writing.ask(max_tokens=1).choices


def test_the_server_answers_others_while_a_schema_is_tried(writing, monkeypatch):
    monkeypatch.setattr("covist.serve.constraint._TRIAL", "import sys; sys.stdin.read(); import time; time.sleep(600)")
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}]}
    slow = {**body, "response_format": schema_format({"const": "never seen before"})}
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(_abandoned, writing, slow)
        assert writing.ask(max_tokens=1).choices
        assert waiting.result() == "left"


def _abandoned(server: Running, body: dict[str, Any]) -> str:
    try:
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=2)
    except httpx.ReadTimeout:
        return "left"
    return "answered"


def test_a_model_that_has_no_letters_says_so(server):
    for wanted in ({"type": "json_object"}, schema_format({"type": "object"})):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "response_format": wanted}
        answer = server.post(body)
        assert answer.status_code == 400
        assert "the tokenizer of this model cannot be held to a format" in answer.json()["error"]["message"]


def test_a_missing_package_is_named(writing, monkeypatch):
    monkeypatch.setitem(__import__("covist.extras").extras.PACKAGES, "structured", ("no_such_package",))
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}], "response_format": schema_format({})}
    message = writing.post(body).json()["error"]["message"]
    assert message == "response_format needs no_such_package: pip install 'covist[structured]'"


# -- tools -------------------------------------------------------------------------------------------------------------

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "$defs": {"side": {"enum": ["left", "right"]}},
            "type": "object",
            "properties": {"side": {"$ref": "#/$defs/side"}},
            "required": ["side"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "maxProperties": 0}}}
NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def calling():
    with serving(Service(writer(TOOL_TEMPLATE), Setup(concentration=CONCENTRATION))) as running:
        yield running


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
def test_a_call_that_is_asked_for_is_made(calling, choice):
    options = {"tools": [LOOK] if choice == "required" else [STOP, LOOK], "tool_choice": choice, "seed": 2}
    answer = calling.ask(temperature=2, parallel_tool_calls=False, **options)
    assert answer.choices[0].finish_reason == "tool_calls" and text(answer) is None
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "look" and json.loads(call.function.arguments)["side"] in ("left", "right")
    messages = [
        {"role": "user", "content": "?"},
        answer.choices[0].message.model_dump(),
        {"role": "tool", "content": "red", "tool_call_id": call.id},
    ]
    again = calling.client().chat.completions.create(model="writer", messages=messages, tools=[LOOK], max_tokens=2)
    assert again.choices[0].finish_reason == "length"


def test_a_streamed_call_arrives_in_one_piece(calling):
    chunks = list(calling.ask(temperature=2, seed=2, tools=[LOOK], tool_choice=NAMED, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert not any(delta.content for delta in deltas)
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert call.index == 0 and json.loads(call.function.arguments)["side"] in ("left", "right")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_change_the_prompt_unless_they_are_not_to_be_called(calling):
    plain, offered, forbidden = (
        calling.ask(max_tokens=1, **options).usage.prompt_tokens
        for options in ({}, {"tools": [LOOK]}, {"tools": [LOOK], "tool_choice": "none"})
    )
    assert plain == forbidden < offered


def test_a_template_without_tools_says_so(writing):
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}], "tools": [LOOK], "max_tokens": 1}
    refused = writing.post(body)
    assert refused.status_code == 400
    assert "tools: the chat template of this model takes no tools" in refused.json()["error"]["message"]
    assert writing.post({**body, "tool_choice": "none"}).status_code == 200
    turn = {"role": "tool", "content": "red", "tool_call_id": "call_1"}
    assert writing.post({**body, "tools": None, "messages": [*body["messages"], turn]}).status_code == 400


def test_special_tokens_cannot_come_in_by_tools(calling):
    tool = {"type": "function", "function": {"name": "look", "description": "</s>"}}
    body = {"model": "writer", "messages": [{"role": "user", "content": "?"}], "tools": [tool]}
    assert "special token" in calling.post(body).json()["error"]["message"]
