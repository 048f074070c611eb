"""Calls in the text of an answer, as models with a template for tools write them."""

import json

import pytest

from covist.serve.tools import CallReader

CALL = '<tool_call>\n{"name": "look", "arguments": {"side": "left"}}\n</tool_call>'


def read(text: str, size: int) -> tuple[str, list]:
    """An answer that comes in pieces of some size."""
    reader = CallReader(is_call=False)
    said = "".join(reader.add(text[start : start + size]) for start in range(0, len(text), size))
    rest, calls = reader.finish()
    return said + rest, [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("just text, 1 < 2", "just text, 1 < 2", 0),
        (f"Let me look.{CALL}", "Let me look.", 1),
        (f"{CALL}\n{CALL}", "", 2),
        ("<tool_call>\nno JSON</tool_call>", "<tool_call>\nno JSON</tool_call>", 0),
        ('<tool_call>{"name": "look"}', '<tool_call>{"name": "look"}', 0),
        ("<tool_", "<tool_", 0),
        ("", "", 0),
    ],
)
def test_calls_are_told_from_text_however_they_are_cut(text, said, calls, size):
    assert read(text, size) == (said, [("look", {"side": "left"})] * calls)
