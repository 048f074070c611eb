"""Servers of the embedded model and of a small one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.serving import CONCENTRATION, Running, serving

from covist import tiny
from covist.api.setup import Setup
from covist.request.loading import LoadedModel, load_model
from covist.serve.service import Service


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def server(loaded) -> Iterator[Running]:
    """The embedded model with its defaults."""
    with serving(Service(loaded, Setup(concentration=CONCENTRATION))) as running:
        yield running


@pytest.fixture(scope="session")
def small_model() -> LoadedModel:
    """Without training: it writes nonsense, and as much of it as is asked for."""
    size = tiny.Size(vision_layers=2, text_layers=1, decoder_layers=3)
    model, processor, clip = tiny.build_random(size=size)
    model.generation_config.eos_token_id = None
    return LoadedModel("small", model, processor, clip)


@pytest.fixture
def serve(small_model) -> Iterator[Callable[..., Running]]:
    """Starts servers of the small model with options of their own."""
    with ExitStack() as open_servers:

        def start(budget: Any = None, origins: Any = (), tls: Any = None, **options: Any) -> Running:
            service = Service(small_model, Setup(budget=budget, concentration=CONCENTRATION), **options)
            return open_servers.enter_context(serving(service, origins=origins, tls=tls))

        yield start


@pytest.fixture
def hold(small_model) -> Iterator[threading.Event]:
    """Holds the model at its next step until the event is set."""
    go_on = threading.Event()
    holding = small_model.model.register_forward_pre_hook(lambda *call: go_on.wait() and None)
    yield go_on
    go_on.set()
    holding.remove()
