"""What clients may send to `/v1/chat/completions`.

Nothing is silently ignored: an unsupported field that would change the answer is refused unless its value is neutral,
and a field that OpenAI does not have is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
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
MOST_TOOLS = 64
MOST_LOGPROBS = 20
SEEDS = 2**63
_OPEN = ("schema", "parameters")
"""Fields that hold a JSON Schema, whose objects may have any number of fields."""
_Label = Annotated[str, Field(max_length=512)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def _refuse_unless_empty(value: Any) -> Any:
    """Pydantic's own words would not say what to do."""
    if value:
        raise PydanticCustomError("unsupported", "not supported, leave it out")
    return value


_NOTHING = AfterValidator(_refuse_unless_empty)
_NoObject = Annotated[dict[str, float], _NOTHING, WithJsonSchema({"type": "object", "maxProperties": 0})]


def _few_messages(value: Any, info: ValidationInfo) -> Any:
    """Count messages before they are looked at; the limit is that of the server, if it is known."""
    most = (info.context or Limits()).messages
    if isinstance(value, list) and len(value) > most:
        raise PydanticCustomError("too_many", "more than {most} messages", {"most": most})
    return value


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


_Shape = TypeVar("_Shape")
Parsed = TypeVar("Parsed")


def _kind(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<object>"


_TextOr = Annotated[Annotated[str, Tag("<text>")] | Annotated[_Shape, Tag("<object>")], Discriminator(_kind)]
"""Text or a shape. Errors are those of the shape unless it is text: "should be a string" would lead astray."""


class TextPart(Strict):
    type: Literal["text"]
    text: str


class InputTextPart(Strict):
    """Text as the Responses API writes it."""

    type: Literal["input_text"]
    text: str


class ImageURL(Strict):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: _TextOr[ImageURL]


class InputImagePart(Strict):
    """An image as the Responses API writes it."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high"] | None = None


class VideoURL(Strict):
    url: str


class VideoPart(Strict):
    type: Literal["video_url"]
    video_url: _TextOr[VideoURL]


Part = Annotated[
    TextPart | InputTextPart | ImagePart | InputImagePart | VideoPart,
    Field(discriminator="type"),
]


class FunctionCall(Strict):
    name: _Label
    arguments: str
    parsed_arguments: Any = None  # as OpenAI's client adds it


class ToolCall(Strict):
    id: _Label
    type: Literal["function"]
    function: FunctionCall


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: _TextOr[Annotated[list[Part], Field(max_length=MOST_PARTS, fail_fast=True)]] | None = None
    name: _Label | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: _Label | None = None
    # Fields of an answer that the OpenAI client sends back as a turn.
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None  # of its `parse`


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    name: _Name
    description: str | None = None
    shape: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class Function(Strict):
    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    name: _Name


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class CompressionChoice(Strict):
    """How one request is compressed; fields that are left out have the server's defaults."""

    budget: int | Annotated[float, Field(allow_inf_nan=False)] | Annotated[str, Field(max_length=64)] | None = None
    strategy: Annotated[str, Field(max_length=32)] | None = None
    method: Annotated[str, Field(max_length=64)] | None = None
    min_coverage: Annotated[float, Field(gt=0, le=1)] | None = None
    max_visual_tokens: Annotated[int, Field(ge=1)] | None = None


class ChatRequest(Strict):
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
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    response_format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = (
        None
    )
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    # Not of OpenAI's, but of vLLM's server and others.
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, allow_inf_nan=False)
    # Not supported: only a value that changes nothing.
    logit_bias: _NoObject | None = None
    # About the client, not about the answer; a model decides itself how many tools it calls.
    parallel_tool_calls: bool | None = None
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
    return parse(body, partial(ChatRequest.model_validate, context=limits))


def parse(text: bytes | bytearray, validate: Callable[[Any], Parsed], what: str = "the body") -> Parsed:
    """What a JSON object says; anything wrong with it raises a `Refusal` of one line, which calls it `what`."""
    try:
        values = from_json(text, allow_inf_nan=False)  # limits the depth of nesting
    except ValueError as error:
        raise Refusal(400, "invalid_json", f"{what} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise Refusal(400, "invalid_json", f"{what} must be a JSON object")
    _refuse_wide(values)
    try:
        return validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(map(str, _steps(first["loc"], values))) or None
        problem = "Input should be an object" if first["type"] == "model_type" else first["msg"]
        raise Refusal(400, "invalid_request", f"{param or 'the request'}: {problem}", param=param) from None


def _refuse_wide(values: Any) -> None:
    """Refuse objects with more fields than any has: Pydantic would collect an error for every one of them."""
    open_values = [values]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            if len(value) > MOST_FIELDS:
                message = f"an object in the request has more than {MOST_FIELDS} fields"
                raise Refusal(400, "invalid_request", message)
            open_values += [inner for name, inner in value.items() if name not in _OPEN]
        elif isinstance(value, list):
            open_values += value


def _steps(place: tuple[int | str, ...], values: Any) -> Iterator[int | str]:
    """The way to the place of an error, without the names that Pydantic gives to the members of unions."""
    for number, step in enumerate(place, 1):
        inside = isinstance(values, dict) and step in values
        if inside or (isinstance(values, list) and isinstance(step, int) and step < len(values)):
            values = values[step]
            yield step
        elif number == len(place) and isinstance(values, dict) and str(step).isidentifier():
            yield step  # a field that is missing
