"""Compression of models that no family file needs to know."""

import warnings

import pytest
import torch

import covist
from covist.contract.method import Method
from covist.methods.create import create_method

FROZEN = 0.05
"""A concentration reference that makes results independent of the order of tests."""


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


@pytest.fixture
def compress():
    """`covist.compress` with a frozen reference, for methods that have one; handles are removed after the test."""
    handles = []

    def start(model, **options):
        method = options["method"]
        if not isinstance(method, Method) and create_method(method).tracker is not None:
            options.setdefault("concentration", FROZEN)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "no clip= given")
            handles.append(covist.compress(model, **options))
        return handles[-1]

    yield start
    for handle in handles:
        handle.remove()
