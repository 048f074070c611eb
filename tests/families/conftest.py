"""The test matrix as fixtures."""

from __future__ import annotations

import warnings
from pathlib import Path
from zlib import crc32

import pytest
import torch
from support.cases import CASES, FAMILIES, FROZEN

import covist

STRATEGIES = ("fixed", "pro")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Each test runs on every model with one strategy, in turn, so that both meet all models; the other one is slow."""
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        model = values.get("case", values.get("family"))
        if item.path.parent == Path(__file__).parent and model is not None and "strategy" in values:
            turn = crc32(f"{item.originalname} {model.name}".encode()) % len(STRATEGIES)
            if values["strategy"] != STRATEGIES[turn]:
                item.add_marker(pytest.mark.slow)


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


@pytest.fixture(params=STRATEGIES)
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
