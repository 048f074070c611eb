"""Golden vectors: inputs, and what the authors' published code made of them (`tests/golden/README.md`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "golden"
BUDGETS = (192, 128, 64)
CASES = 3
PAD = -1
SHARED_WEIGHTS = frozenset({"query_weight", "key_weight", "norm_weight"})
"""Arrays of three layers, which only look as if they had one entry per case."""


@dataclass(frozen=True)
class Case:
    """One case of a file; `case["kept_64"]` is an array without its case dimension and its pads."""

    file: str
    name: int | str
    arrays: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    def __str__(self) -> str:
        return f"{self.file}-{self.name}"


def files() -> list[str]:
    """The names of all files, without their ending."""
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


@cache
def cases(file: str) -> list[Case]:
    """The cases of a file; what belongs to all of them (parameters, weights) is in each."""
    with np.load(FOLDER / f"{file}.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return [
        Case(file, number, {name: _of_case(name, array, number) for name, array in arrays.items()})
        for number in range(CASES)
    ]


@cache
def named_case(file: str, name: str) -> dict[str, Tensor]:
    """The arrays of one case of a file of named cases."""
    return _beginning_with(f"{name}_", stored(file))


def _of_case(name: str, array: np.ndarray, number: int) -> Tensor:
    """One case's part of an array: integers as int64 without the pads at their end, everything else as stored."""
    by_case = array.ndim > 0 and len(array) == CASES and name not in SHARED_WEIGHTS
    own = torch.tensor(array[number] if by_case else array)
    if own.dtype != torch.int32:
        return own
    own = own.long()
    return own[own != PAD] if own.ndim == 1 else own


@cache
def named_cases(file: str) -> list[Case]:
    """The cases of a file whose arrays are called CASE_INPUT and CASE_out_OUTPUT; every case has a CASE_seed."""
    arrays = stored(file)
    names = [name.removesuffix("_seed") for name in arrays if name.endswith("_seed")]
    return [Case(file, case, _beginning_with(f"{case}_", arrays)) for case in names]


@cache
def stored(file: str) -> dict[str, Tensor]:
    """All arrays of a file by name; integers as int64."""
    with np.load(FOLDER / f"{file}.npz") as arrays:
        tensors = {name: torch.tensor(arrays[name]) for name in arrays.files}
    return {name: array.long() if array.dtype == torch.int32 else array for name, array in tensors.items()}


def _beginning_with(prefix: str, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
