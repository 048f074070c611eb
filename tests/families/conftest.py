"""The test matrix as fixtures."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.cases import CASES, FAMILIES, FROZEN

import covist


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(params=FAMILIES, ids=lambda case: case.name)
def family(request):
    """One model per family, where the number of key heads does not matter."""
    return request.param


@pytest.fixture(params=["fixed", "pro"])
def strategy(request):
    return request.param


@pytest.fixture
def compress():
    """`covist.compress` of a case with a frozen reference; handles are removed after the test."""
    handles = []

    def start(case, **options):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no clip= given")
            handles.append(covist.compress(case.model, case.processor(), **{"concentration": FROZEN, **options}))
        return handles[-1]

    yield start
    for handle in handles:
        handle.remove()
