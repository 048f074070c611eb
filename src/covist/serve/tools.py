"""Tools: which of them a request offers to the model, and the calls in its answer."""

from __future__ import annotations

import json
import uuid
from typing import Any

from covist.serve.errors import Refusal
from covist.serve.schema import ChatRequest, NamedTool, Tool
from covist.serve.text import StopStrings

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
"""Around each call, as the templates of Qwen, Hermes and others ask for it."""


def offered(wanted: ChatRequest) -> list[dict[str, Any]]:
    """The tools of a request as chat templates take them; none if it forbids their use."""
    if wanted.tool_choice == "none":
        return []
    return [tool.model_dump(exclude_none=True) for tool in wanted.tools or ()]


def must_call(wanted: ChatRequest) -> list[Tool]:
    """The tools of which the answer must call one; empty if it may be text."""
    choice, tools = wanted.tool_choice, wanted.tools or []
    if isinstance(choice, NamedTool):
        found = [tool for tool in tools if tool.function.name == choice.function.name]
    elif choice == "required":
        found = tools
    else:
        return []
    if not found:
        raise Refusal(400, "invalid_request", "tool_choice: no such function among the tools", param="tool_choice")
    return found


def call_schema(tools: list[Tool]) -> dict[str, Any]:
    """The JSON Schema of a call of one of these tools."""
    places = {f"call{index}": tool.function for index, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": function.name}, "arguments": {"$ref": f"#/$defs/{place}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, function in places.items()
    ]
    shapes = {
        place: _moved(function.parameters or {"type": "object"}, f"#/$defs/{place}")
        for place, function in places.items()
    }
    return {"$defs": shapes, "anyOf": calls}


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references are right at another place of a document."""
    if isinstance(schema, list):
        return [_moved(inner, place) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: place + inner[1:]
        if name == "$ref" and isinstance(inner, str) and inner.startswith("#")
        else _moved(inner, place)
        for name, inner in schema.items()
    }


class CallReader:
    """Separates the text of an answer from the calls in it, while the answer is being written.

    is_call: whether the whole answer is a call, because the request asked for one
    """

    def __init__(self, is_call: bool):
        self._is_call = is_call
        self._before = StopStrings([_OPEN])
        self._written = ""

    def add(self, text: str) -> str:
        """The part of more text that is not a call, as far as that is known."""
        self._written += text
        return "" if self._is_call or self._before.found else self._before.add(text)

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """The text that is left, and the calls; what looks like a call and is none is text."""
        if not self._is_call and not self._before.found:
            return self._before.rest(), []
        left = self._written[0 if self._is_call else self._written.index(_OPEN) :]
        try:
            return "", [_call(one) for one in left.removeprefix(_OPEN).split(_OPEN)]
        except (KeyError, TypeError, ValueError):
            return left, []


def _call(text: str) -> dict[str, Any]:
    """One call in OpenAI's form."""
    read = json.loads(text.partition(_CLOSE)[0])
    arguments = read["arguments"]
    function = {
        "name": str(read["name"]),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    }
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
