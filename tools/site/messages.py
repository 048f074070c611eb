"""The page of all error messages, read from the source at every build of the site, so that it is always complete."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE, TROUBLESHOOTING = ROOT / "src" / "covist", ROOT / "docs" / "troubleshooting.md"
Texts = dict[str, list[str]]  # the texts of a variable
ANYTHING = "…"
WORDY = 8
"""Fixed letters that a message must have; one with fewer only passes on another message."""
INTRODUCTION = f"""\
# Every error message

covist refuses bad input with a `CovistError` of one line; commands then exit with code 2. Each message states what was
wrong and what to do. The list below groups all of them by what you were doing. `{ANYTHING}` stands for the part that is
filled in. Where a message needs more words, its cause follows, as in [Troubleshooting](troubleshooting.md). The server
also answers with a [status code](http-api.md#refusals)."""
ROOMS = {
    "Compressing a model": (
        "When `covist.compress` is called, or the compressed model runs.",
        "api backends.py contract engine",
    ),
    "Methods and budgets": (
        "When a method, one of its settings, a budget or a constant is outside its range.",
        "methods formulas budget.py checks.py config.py files.py grid.py plan.py schedule.py state.py",
    ),
    "Models and checkpoints": (
        "When a model is loaded, or a family is found for it.",
        "families tiny loading.py plugins.py",
    ),
    "Images, videos and prompts": ("When a prompt is read, from a command, a request or a row.", "request opening.py"),
    "Command line and output files": (
        "When options contradict each other, a package is missing, or a file cannot be written.",
        "cli viz extras.py outputs.py",
    ),
    "Evaluating and tuning": ("In `covist eval`, `tune`, `calibrate` and `export`.", "eval"),
    "Benchmarks": ("In `covist bench`.", "bench"),
    "The paper's tables": ("In `covist reproduce`.", "reproduce"),
    "lmms-eval": ("When lmms-eval runs covist as its model.", "lmms"),
    "Server and page": ("When `covist serve` starts, or reads a request.", "serve page"),
    "Batch jobs": ("In `covist batch`.", "batch"),
    "Ray": ("With `--ray`.", "cluster"),
    "vLLM": ("In `covist vllm-args`, and inside an engine with the plugin.", "vllm"),
}
"""Heading -> when its messages appear, and the folders and files of the package that raise them."""


def page() -> str:
    parts, causes = [INTRODUCTION], explained()
    under: dict[str, set[str]] = {heading: set() for heading in ROOMS}
    for file, found in by_file().items():
        under[room_of(file)].update(found)
    for heading, (when, _) in ROOMS.items():
        parts += [f"## {heading}", when]
        parts += ["\n".join(f"- `` {message} ``{_cause(message, causes)}" for message in sorted(under[heading]))]
    return "\n\n".join(parts) + "\n"


def _cause(message: str, causes: dict[str, str]) -> str:
    begins = [beginning for beginning in causes if message.startswith(beginning)]
    return f"<br>{causes[max(begins, key=len)]}" if begins else ""


def explained() -> dict[str, str]:
    """How a message begins -> its cause, from the tables of the page on troubleshooting."""
    return dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", TROUBLESHOOTING.read_text(encoding="utf-8"), re.M))


def room_of(file: str) -> str:
    """The heading that the messages of a file of the package belong under."""
    return next(heading for heading, (_, places) in ROOMS.items() if file.partition("/")[0] in places.split())


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
