"""Commands and paths that are mentioned in passing: parsed and looked up, never run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer.main

from covist.cli.app import app
from covist.cli.options import with_ray_address
from support.pages import ROOT

SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
FOLDER = re.compile(r"(benchmarks|deploy|docs|examples|src|tests|tools)/")
METAVAR = re.compile(r"[A-Z][A-Z:]*")
NOTATION = re.compile(r"\.\.\.|…|[\[|]")
"""What synopses are written in: something left out, an option that may be missing, a choice."""
ENVIRONMENT = re.compile(r"^([A-Z_]+=\S* )+")
OURS = {"covist", "studies", "train"}
"""Packages that commands run: that of the wheel, and those of a clone."""
GIVEN_ANYWHERE = {"-h", "--help"}
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def spans_of(text: str) -> list[str]:
    """The code spans of a text, in one line each; inside tables a bar is escaped."""
    return [" ".join(span.replace("\\|", "|").split()) for span in SPAN.findall(text) if "\n\n" not in span]


def mistake_in(span: str) -> str | None:
    """What is wrong with a command or path, if anything is."""
    try:
        words = shlex.split(ENVIRONMENT.sub("", span), comments=True)
    except ValueError:  # a quote of a language, not of a shell
        return None
    if words[:1] == ["covist"] and len(words) > 1:
        return mistake_in_covist(words[1:], is_notation=NOTATION.search(span) is not None)
    if words[:1] == ["make"] and len(words) > 1 and not is_open(words[1]) and words[1] not in make_targets():
        return f"the Makefile has no target {words[1]}"
    if words[:2] == ["python", "-m"] and words[2].partition(".")[0] in OURS and find_spec(words[2]) is None:
        return f"there is no module {words[2]}"
    if missing := [path for path in paths_in(words) if not any(ROOT.glob(path))]:
        return f"there is no {missing[0]}"
    return next((mistake_in_script(path, words) for path in paths_in(words) if path.endswith(".py")), None)


def mistake_in_script(path: str, words: list[str]) -> str | None:
    """An option that neither a script nor a module beside it has; scripts cannot be parsed without being run."""
    source = "".join(one.read_text(encoding="utf-8") for one in (ROOT / path).parent.glob("*.py"))
    unknown = [word for word in words if word.startswith("--") and f'"{word}"' not in source]
    return f"{path} has no {unknown[0]}" if unknown else None


def mistake_in_covist(arguments: list[str], is_notation: bool = False) -> str | None:
    """What the command line would refuse. Of a synopsis only the names are checked: it cannot be parsed."""
    name, *rest = (argument.strip("[],") for argument in with_ray_address(arguments))
    if name.startswith("-") or METAVAR.fullmatch(name):
        return None
    if name not in COMMANDS:
        return f"there is no command {name}"
    options = {option for one in COMMANDS[name].params for option in (*one.opts, *one.secondary_opts)} | GIVEN_ANYWHERE
    if unknown := [word for word in rest if word.startswith("--") and word not in options]:
        return f"covist {name} has no {unknown[0]}"
    if is_notation or any(map(METAVAR.fullmatch, rest)):
        return None
    if rest and rest[-1] in options:
        rest.pop()  # only named: what it would be given is left out
    try:
        COMMANDS[name].make_context(name, rest)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        is_named_only = type(error).__name__ == "MissingParameter"
        return None if is_named_only else error.format_message()
    return None


def is_open(word: str) -> bool:
    """Whether a part of a name is left to the reader."""
    return NOTATION.search(word) is not None or any(map(METAVAR.fullmatch, re.split(r"[-_/.]", word)))


def paths_in(words: list[str]) -> Iterator[str]:
    for word in words:
        path = word.partition("::")[0].rstrip("/.,:")
        if FOLDER.match(path) and not is_open(path):
            yield path


@cache
def make_targets() -> frozenset[str]:
    return frozenset(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))


def strings_of(path: Path) -> Iterator[str]:
    """The texts in a file of Python, docstrings and messages alike; what is filled in becomes an ellipsis."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        else:
            todo += ast.iter_child_nodes(node)
