"""Models that all engine tests share. Compression is undone exactly, so one instance serves the whole session."""

import warnings

import pytest
import torch
from support.llava import build_clip, build_llava, processor

import covist
from covist.contract.method import Method

FROZEN = 0.05
"""A concentration reference that makes results independent of the order of tests."""


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def multi_head():
    return build_llava()


@pytest.fixture(scope="session")
def grouped_query():
    return build_llava(kv_heads=2, seed=3)


@pytest.fixture(scope="session", params=["multi_head", "grouped_query"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def clip(multi_head):
    return build_clip(multi_head)


@pytest.fixture(params=["fixed", "pro"])
def strategy(request):
    return request.param


@pytest.fixture
def compress():
    """`covist.compress` with the test processor and a frozen reference; handles are removed after the test."""
    handles = []

    def start(model, **options):
        if not isinstance(options.get("method"), Method):
            options.setdefault("concentration", FROZEN)
        options.setdefault("processor", processor())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no clip= given")
            handles.append(covist.compress(model, **options))
        return handles[-1]

    yield start
    for handle in handles:
        handle.remove()
