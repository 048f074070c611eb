"""Shared test settings. The instruction-set limit must be in the environment before torch starts."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import HealthCheck, settings

import covist.state
from covist import plugins
from covist.families import registry as families
from covist.methods import registry as methods

pytest_plugins = ["support.rounding"]

settings.register_profile(
    "covist", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("covist")


@pytest.fixture(autouse=True)
def validated_states(monkeypatch):
    """Every state built in a test is checked on construction."""
    monkeypatch.setattr(covist.state, "VALIDATE", True)


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws does not depend on the tests that ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch):
    """Methods, families and plugins that a test loads are gone after it; reading `--plugin` loads some."""
    methods.available_methods(), families.available_families()  # covist's own stay
    monkeypatch.setattr(methods, "_METHODS", dict(methods._METHODS))
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(plugins, "_LOADED", set())
