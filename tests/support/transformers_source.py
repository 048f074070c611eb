"""Functions of transformers whose modules need torchvision, though they do not: compiled from their source alone."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

NAMES: dict[str, Any] = {"math": math, "np": np, "torch": torch}


def function_from(module: str, name: str, **names: Any) -> Callable[..., Any]:
    """`name` or `Class.name` of a module of transformers, in which `names` mean what they are given as."""
    source = Path(transformers.__file__).parent / Path(*module.split(".")).with_suffix(".py")
    scope: list[ast.stmt] = ast.parse(source.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = next(node for node in scope if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == part)
        scope = found.body
    assert isinstance(found, ast.FunctionDef)
    for argument in (*found.args.args, *found.args.kwonlyargs):
        argument.annotation = None
    found.returns, found.decorator_list = None, []
    namespace = {**NAMES, **names}
    exec(compile(ast.Module([found], type_ignores=[]), str(source), "exec"), namespace)
    return namespace[found.name]
