"""What clients may send to `/v1/chat/completions`.

Nothing is silently ignored: an unsupported field that would change the answer is refused unless its value is neutral,
and a field that OpenAI does not have is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError, from_json

from covist.serve.errors import Refusal
from covist.serve.limits import Limits

LONGEST_STOP = 64
MOST_FIELDS = 64
"""Fields of one object, more than any object of a request has."""
MOST_PARTS = 256
"""Parts of one message."""
SEEDS = 2**63
_Label = Annotated[str, Field(max_length=512)]
_Zero = Annotated[float, Field(ge=0, le=0, allow_inf_nan=False)]


def _refuse_unless_empty(value: Any) -> Any:
    """Pydantic's own words would not say what to do."""
    if value:
        raise PydanticCustomError("unsupported", "not supported, leave it out")
    return value


_NOTHING = AfterValidator(_refuse_unless_empty)
_False = Annotated[bool, _NOTHING, WithJsonSchema({"type": "boolean", "const": False})]
_NoList = Annotated[list[Any], _NOTHING, WithJsonSchema({"type": "array", "maxItems": 0})]
_NoObject = Annotated[dict[str, float], _NOTHING, WithJsonSchema({"type": "object", "maxProperties": 0})]


def _few_messages(value: Any, info: ValidationInfo) -> Any:
    """Count messages before they are looked at; the limit is that of the server, if it is known."""
    most = (info.context or Limits()).messages
    if isinstance(value, list) and len(value) > most:
        raise PydanticCustomError("too_many", "more than {most} messages", {"most": most})
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ImageURL(_Strict):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(_Strict):
    type: Literal["image_url"]
    image_url: ImageURL


class Message(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str
        | Annotated[
            list[Annotated[TextPart | ImagePart, Field(discriminator="type")]],
            Field(max_length=MOST_PARTS, fail_fast=True),
        ]
    )
    name: _Label | None = None
    # Fields of an answer that the OpenAI client sends back as a turn.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class TextFormat(_Strict):
    type: Literal["text"]


class CompressionChoice(_Strict):
    """How one request is compressed; fields that are left out have the server's defaults."""

    budget: int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=32)] | None = None
    strategy: Annotated[str, Field(max_length=32)] | None = None
    method: Annotated[str, Field(max_length=64)] | None = None
    min_coverage: Annotated[float, Field(gt=0, le=1)] | None = None


class ChatRequest(_Strict):
    model: _Label
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True), BeforeValidator(_few_messages)]
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-SEEDS, lt=SEEDS)
    stop: (
        Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]], Field(max_length=4)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    covist: CompressionChoice | None = None
    # Not supported: only values that change nothing.
    frequency_penalty: _Zero | None = None
    presence_penalty: _Zero | None = None
    logprobs: _False | None = None
    response_format: TextFormat | None = None
    tools: _NoList | None = None
    logit_bias: _NoObject | None = None
    # About the client, not about the answer.
    user: _Label | None = None
    metadata: Annotated[dict[_Label, _Label], Field(max_length=16)] | None = None
    store: bool | None = None
    service_tier: _Label | None = None
    safety_identifier: _Label | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


def parse_chat(body: bytes | bytearray, limits: Limits | None = None) -> ChatRequest:
    """Parse a body; anything wrong with it raises a `Refusal` of one line."""
    try:
        values = from_json(body, allow_inf_nan=False)  # limits the depth of nesting
    except ValueError as error:
        raise Refusal(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refusal(400, "invalid_json", "the body must be a JSON object")
    _refuse_wide(values)
    try:
        return ChatRequest.model_validate(values, context=limits)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(step) for step in first["loc"] if _is_field(step)) or None
        raise Refusal(400, "invalid_request", f"{param or 'the request'}: {first['msg']}", param=param) from None


def _refuse_wide(values: Any) -> None:
    """Refuse objects with more fields than any has: Pydantic would collect an error for every one of them."""
    open_values = [values]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            if len(value) > MOST_FIELDS:
                message = f"an object in the request has more than {MOST_FIELDS} fields"
                raise Refusal(400, "invalid_request", message)
            open_values += value.values()
        elif isinstance(value, list):
            open_values += value


def _is_field(step: int | str) -> bool:
    """Whether a step in the place of an error is a field of the request, not the name of a type."""
    return isinstance(step, int) or (step.isidentifier() and step not in {"str", "int", "float"})
