"""The page of all error messages, read from the source whenever the site is built, so that none is missing or old."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).resolve().parents[2] / "src" / "covist"
Texts = dict[str, list[str]]  # what a name stands for
ANYTHING = "…"
WORDY = 8
"""Letters that must be left of a message without what is filled in; those with fewer only pass another one on."""
INTRODUCTION = f"""\
# Every error message

What covist refuses is a `CovistError` of one line, on the command line with exit code 2. `{ANYTHING}` stands for what
is filled in. [Troubleshooting](troubleshooting.md) explains those that need more words than their own. Refusals of the
server have a [status](serving.md#limits) as well."""


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
    """The messages of every file of the package that has some."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        own = sorted(set(messages(ast.parse(path.read_text(encoding="utf-8")))))
        if own:
            found[path.relative_to(SOURCE).as_posix()] = own
    return found


def messages(tree: ast.Module) -> Iterator[str]:
    """What the functions of a module give to `CovistError`, and to `require`, which puts the place before it."""
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
    """Variables that stand for one text."""
    assignments = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return {node.targets[0].id: text(node.value, {}) for node in assignments}


def text(node: ast.expr, named: Texts) -> list[str]:
    """An expression as readers may see it: one text, or several where a name stands for several."""
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
