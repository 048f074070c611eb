"""The page of all error messages, read from the source at every build of the site, so that it is always complete."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).resolve().parents[2] / "src" / "covist"
Texts = dict[str, list[str]]  # the texts of a variable
ANYTHING = "…"
WORDY = 8
"""Fixed letters that a message must have; one with fewer only passes on another message."""
INTRODUCTION = f"""\
# Every error message

Everything that covist refuses raises a `CovistError` of one line; commands exit with code 2. `{ANYTHING}` stands for a
value that is filled in. [Troubleshooting](troubleshooting.md) explains the messages that need more words. Refusals of
the server also have a [status](serving.md#limits)."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs when it has collected docs/."""
    files.append(File.generated(config, "messages.md", content=page()))
    return files


def page() -> str:
    parts = [INTRODUCTION]
    for file, found in by_file().items():
        parts += [f"## {file}", "\n".join(f"- `` {one} ``" for one in found)]
    return "\n\n".join(parts) + "\n"


def by_file() -> dict[str, list[str]]:
    """The messages of every file of the package, if it has any."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        own = sorted(set(messages(ast.parse(path.read_text(encoding="utf-8")))))
        if own:
            found[path.relative_to(SOURCE).as_posix()] = own
    return found


def messages(tree: ast.Module) -> Iterator[str]:
    """The messages that a module's functions pass to `CovistError`, and to `require`, which adds the place."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    returned = {function.name: _returned(function) for function in functions}
    for function in functions:
        arguments = {argument.arg: [ANYTHING] for argument in ast.walk(function) if isinstance(argument, ast.arg)}
        named = {**returned, **_assigned(tree.body), **_assigned(ast.walk(function)), **arguments}
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                yield from (found for found in _given(call, named) if sum(map(str.isalpha, found)) >= WORDY)


def _given(call: ast.Call, named: Texts) -> list[str]:
    """The message of a call that raises one."""
    if call.func.id == "CovistError":
        return text(call.args[0], named)
    if call.func.id == "require":
        return [f"{ANYTHING}: {message}" for message in text(call.args[2], named)]
    return []


def _returned(function: ast.FunctionDef) -> list[str]:
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return [message for value in values for message in text(value, {})]


def _assigned(nodes: Iterable[ast.AST]) -> Texts:
    """Variables that are assigned a text."""
    assignments = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return {node.targets[0].id: text(node.value, {}) for node in assignments}


def text(node: ast.expr, named: Texts) -> list[str]:
    """The possible texts of an expression: several if a name stands for several texts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return _joined([text(part, named) for part in node.values])
    if isinstance(node, ast.BinOp):
        return _joined([text(node.left, named), text(node.right, named)])
    if isinstance(node, ast.IfExp):
        return text(node.body, named) + text(node.orelse, named)
    if isinstance(node, ast.FormattedValue):
        return text(node.value, named) if isinstance(node.value, ast.Name) else [ANYTHING]
    name = node.func if isinstance(node, ast.Call) else node
    return named.get(name.id, [ANYTHING]) if isinstance(name, ast.Name) else [ANYTHING]


def _joined(parts: list[list[str]]) -> list[str]:
    return ["".join(chosen) for chosen in product(*parts)]
