"""How the site reads docstrings: lines `name: meaning` become a list of parameters, examples become code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Class, Extension, Function, Object

PARAMETERS = re.compile(r"^(\w+(?:, \w+)*): ")


class PlainDocstrings(Extension):
    """Turns docstrings into Markdown."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, parameters_of(obj))


def parameters_of(obj: Object) -> set[str]:
    """The parameters of a function, or of the constructor of a class."""
    if isinstance(obj, Function):
        return {parameter.name.lstrip("*") for parameter in obj.parameters}
    if isinstance(obj, Class):
        made = obj.members.get("__init__")
        return parameters_of(made) if isinstance(made, Function) else set(obj.attributes)
    return set()


def as_markdown(text: str, parameters: set[str]) -> str:
    """The docstring with its parameters as a list, and fences around its examples."""
    return "\n\n".join(_block(block, parameters) for block in re.split(r"\n\s*\n", text))


def _block(block: str, parameters: set[str]) -> str:
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    lines = block.splitlines()
    named = [_named(line, parameters) for line in lines]
    if not lines or named[0] is None:
        return block
    return "\n".join(line if new is None else new for line, new in zip(lines, named, strict=True))


def _named(line: str, parameters: set[str]) -> str | None:
    """A line that starts the description of a parameter, as a list item; None for any other line."""
    found = PARAMETERS.match(line)
    if found is None or not parameters.issuperset(found[1].split(", ")):
        return None
    names = ", ".join(f"`{name}`" for name in found[1].split(", "))
    return f"- {names}: {line[found.end() :]}"
