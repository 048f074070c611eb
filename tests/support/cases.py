"""The test matrix: every entry of `matrix/`, found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from support import matrix
from support.case import Case

FROZEN = 0.05
"""A concentration reference that makes results independent of the order of tests."""

CASES: tuple[Case, ...] = tuple(
    case
    for entry in pkgutil.iter_modules(matrix.__path__)
    for case in importlib.import_module(f"support.matrix.{entry.name}").CASES
)


def first_of(family: str) -> Case:
    """The first case of a family, where its variants do not matter."""
    return next(case for case in CASES if case.family == family)


FAMILIES: tuple[Case, ...] = tuple({(case.family, case.model_class): case for case in reversed(CASES)}.values())[::-1]
"""The first case of each family and model class."""
