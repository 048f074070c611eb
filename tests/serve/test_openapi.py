"""The OpenAPI schema says what the server accepts and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from fastapi.openapi.models import OpenAPI
from jsonschema import Draft202012Validator
from support.serving import HTTP, said, shown

from covist import tiny
from covist.serve.app import CHAT, PATHS
from covist.serve.errors import Refusal
from covist.serve.keys import Keys
from covist.serve.openapi import PATH
from covist.serve.schema import ChatRequest, parse_chat

IMAGE, QUESTION, _ = tiny.demo()
EVERYTHING: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be short", "name": "one"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "where ?"},
                {"type": "input_text", "text": "what ?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}},
            ],
        },
        {"role": "assistant", "content": "here", "refusal": None, "annotations": None, "audio": None},
        {"role": "assistant", "content": "there", "function_call": None, "tool_calls": None, "parsed": {"x": 1}},
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": "{}", "parsed_arguments": None},
                }
            ],
        },
        {"role": "tool", "content": "red", "tool_call_id": "call_1"},
    ],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["end"],
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "n": 2,
    "covist": {
        "budget": "11%",
        "strategy": "pro",
        "method": "divprune",
        "min_coverage": 0.9,
        "max_visual_tokens": 4096,
    },
    "frequency_penalty": 0,
    "presence_penalty": -1.5,
    "logprobs": True,
    "top_logprobs": 3,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "one", "description": "more", "schema": {"type": "object"}, "strict": True},
    },
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "description": "more", "parameters": {"type": "object"}, "strict": False},
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "logit_bias": {},
    "user": "someone",
    "metadata": {"key": "value"},
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "someone",
}
"""A request with every field."""
VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63,
    0.5,
    2.5,
    "",
    "text",
    "x" * 600,
    [],
    ["x"],
    [1] * 300,
    {},
    {"x": "y"},
    {"x": 1},
]
"""Whole numbers written as 1.0 are missing: JSON Schema calls them integers, and the server does not."""


@pytest.fixture(scope="module")
def schema(server) -> dict[str, Any]:
    answer = HTTP.get(server.url + PATH)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    return answer.json()


def validator(schema: dict[str, Any], name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", **schema})


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in inner:
        yield (*above, step)
        yield from places(below, (*above, step))


def changed(body: Any, place: tuple[Any, ...], change: Any) -> Any:
    body = deepcopy(body)
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    change(inner, place[-1])
    return body


def variants() -> Iterator[dict[str, Any]]:
    """The request with every value replaced, every field left out, and an unknown field in every object."""
    yield EVERYTHING
    for place in places(EVERYTHING):
        yield changed(EVERYTHING, place, lambda inner, step: inner.pop(step))
        for value in VALUES:
            yield changed(EVERYTHING, place, lambda inner, step, value=value: inner.__setitem__(step, value))
        if isinstance(place[-1], str):
            yield changed(EVERYTHING, place, lambda inner, step: inner.update(unknown=1))


def is_accepted(body: dict[str, Any]) -> bool:
    try:
        parse_chat(json.dumps(body).encode())
    except Refusal:
        return False
    return True


def test_every_field_of_a_request_is_tried():
    assert set(EVERYTHING) == set(ChatRequest.model_fields)


def test_the_schema_accepts_what_the_server_accepts_and_nothing_else(schema):
    valid = validator(schema, "ChatRequest")
    bodies = list(variants())
    accepted = [is_accepted(body) for body in bodies]
    assert accepted[0] and 100 < sum(accepted) < len(accepted) - 100
    assert [body for body, is_good in zip(bodies, accepted, strict=True) if valid.is_valid(body) != is_good] == []


def test_the_schema_is_openapi_and_names_every_path_but_its_own(schema):
    OpenAPI.model_validate(schema)
    for shape in schema["components"]["schemas"].values():
        Draft202012Validator.check_schema(shape)
    assert set(schema["paths"]) == {*PATHS, "/v1/models/{model}"} - {PATH}
    asked = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": "#/components/schemas/ChatRequest"}


@pytest.mark.parametrize("content", [QUESTION, [shown(IMAGE), said(QUESTION)]], ids=["text", "image"])
def test_an_answer_has_the_shape_that_the_schema_says(server, schema, content):
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2, "n": 2}
    answer = server.post(body).json()
    validator(schema, "Completion").validate(answer)
    assert len(answer["covist"]["certificates"]) == (content is not QUESTION)


def test_the_events_of_a_stream_have_the_shape_that_the_schema_says(server, schema):
    body = {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 3}
    text = server.post({**body, "stream": True, "stream_options": {"include_usage": True}}).text
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert last == "[DONE]" and len(events) > 2
    for event in events:
        validator(schema, "Chunk").validate(json.loads(event))


def test_refusals_and_the_other_paths_have_the_shapes_that_the_schema_says(server, schema):
    shapes = {
        "/v1/models": "Models",
        "/v1/models/tiny": "ServedModel",
        "/v1/models/other": "ErrorBody",
        "/health": "Status",
        "/ready": "Status",
        "/nowhere": "ErrorBody",
    }
    for path, name in shapes.items():
        validator(schema, name).validate(HTTP.get(server.url + path).json())
    refused = server.post({"model": "tiny"})
    assert str(refused.status_code) in schema["paths"][CHAT]["post"]["responses"]
    validator(schema, "ErrorBody").validate(refused.json())


def test_the_schema_needs_no_key_and_no_page_shows_it_with_scripts_of_other_hosts(serve):
    server = serve(keys=Keys(["secret"]))
    assert HTTP.get(server.url + "/v1/models").status_code == 401
    assert HTTP.get(server.url + PATH).status_code == 200
    assert [HTTP.get(server.url + path).status_code for path in ("/docs", "/redoc")] == [404, 404]
