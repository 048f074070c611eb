"""The server's OpenAPI schema, at `/openapi.json`: what clients may send, and what they receive.

FastAPI writes it from the routes. They read bodies and write answers themselves, so this file says what FastAPI cannot
know. The classes describe answers; tests hold real ones against them.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from covist.serve.schema import ChatRequest

PATH = "/openapi.json"
DESCRIPTION = """Chat completions as OpenAI's clients know them, about images that the server compresses. The limits of
a server (`covist serve --help`) apply beside this schema, which is the same for every server of this version."""
_PLACE = "#/components/schemas/{model}"


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BeforeAndAfter(_Shape):
    """Without compression, and with it."""

    before: float
    after: float


class Seconds(_Shape):
    """Since the arrival of the request."""

    queue: float
    first_token: float
    total: float


class Compression(_Shape):
    """What compression did: tokens averaged over layers, and keys and values of the prompt."""

    method: str
    budget: int | float | str | None
    visual_tokens: BeforeAndAfter
    certificates: list[dict[str, float | str | None] | None]
    cache_bytes: BeforeAndAfter
    seconds: Seconds


class Usage(_Shape):
    """Tokens as the client sent them: visual tokens before compression."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogprob(_Shape):
    """A token, and the logarithm of its chance before temperature, penalties and formats."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class Logprobs(_Shape):
    content: list[ContentLogprob]
    refusal: None


class Called(_Shape):
    name: str
    arguments: str


class AnswerCall(_Shape):
    id: str
    type: Literal["function"]
    function: Called


class CallDelta(AnswerCall):
    index: int


class AnswerMessage(_Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[AnswerCall] | None = None


FinishReason = Literal["stop", "length", "tool_calls"]


class Choice(_Shape):
    index: int
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class Completion(_Shape):
    """An answer in one piece."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    covist: Compression


class Delta(_Shape):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(_Shape):
    index: int
    delta: Delta
    logprobs: Logprobs | None
    finish_reason: FinishReason | None


class Chunk(_Shape):
    """An event of a stream; the last one is the text `[DONE]`, or an `ErrorBody` if the answer failed."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    covist: Compression | None = None


class ServedModel(_Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["covist"]


class Models(_Shape):
    """The one model that is served."""

    object: Literal["list"]
    data: list[ServedModel]


class Status(_Shape):
    status: Literal["ok", "ready", "draining", "failed"]


class Error(_Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(_Shape):
    """A refusal of one line, in OpenAI's form."""

    error: Error


def _refusals(reasons: dict[int, str]) -> dict[int, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": reason} for status, reason in reasons.items()}


def _content(media: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"content": {media: {"schema": {"$ref": _PLACE.format(model=model.__name__)}}}}


_KEY: dict[str, Any] = {"security": [{"key": []}, {}]}  # the second: a server without --api-key-file
CHAT: dict[str, Any] = {
    "operation_id": "create_chat_completion",
    "summary": "Answer a conversation about images",
    "openapi_extra": {**_KEY, "requestBody": {"required": True, **_content("application/json", ChatRequest)}},
    "responses": {
        200: {"model": Completion, "description": "The answer", **_content("text/event-stream", Chunk)},
        **_refusals(
            {
                400: "Wrong JSON, types or values, an image that cannot be read, a prompt that is too long",
                401: "No valid API key",
                404: "Another model",
                408: "The body arrived too slowly",
                413: "The body is too large",
                429: "The queue is full",
                500: "The generation failed",
                503: "Shutting down, an accelerator error, too much at once, or the replica has died",
                504: "The request took too long",
            }
        ),
    },
}
MODELS: dict[str, Any] = {
    "operation_id": "list_models",
    "summary": "The model that is served",
    "openapi_extra": _KEY,
    "responses": {200: {"model": Models, "description": "A list of one"}, **_refusals({401: "No valid API key"})},
}
MODEL: dict[str, Any] = {
    "operation_id": "retrieve_model",
    "summary": "The model that is served, by its name",
    "openapi_extra": _KEY,
    "responses": {
        200: {"model": ServedModel, "description": "The model"},
        **_refusals({401: "No valid API key", 404: "Another model"}),
    },
}
HEALTH: dict[str, Any] = {
    "operation_id": "health",
    "summary": "Whether the process can answer",
    "responses": {
        200: {"model": Status, "description": "It can"},
        503: {"model": Status, "description": "An accelerator error, which only a new process recovers from"},
    },
}
READY: dict[str, Any] = {
    "operation_id": "ready",
    "summary": "Whether the server takes requests",
    "responses": {
        200: {"model": Status, "description": "It does"},
        503: {"model": Status, "description": "It drains, or it cannot answer"},
    },
}
METRICS: dict[str, Any] = {
    "operation_id": "metrics",
    "summary": "Counters for Prometheus",
    "responses": {200: {"description": "Prometheus's text", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}


class Described(FastAPI):
    """An application whose schema also has the shapes that its routes read and write themselves."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = get_openapi(title=self.title, version=self.version, description=DESCRIPTION, routes=self.routes)
            shapes = models_json_schema([(ChatRequest, "validation"), (Chunk, "validation")], ref_template=_PLACE)[1]
            parts = schema.setdefault("components", {})
            parts.setdefault("schemas", {}).update(shapes["$defs"])
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            self.openapi_schema = schema
        return self.openapi_schema
