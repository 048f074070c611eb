"""What a service is built from, as plain values, so that every process builds the same service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from covist.api.setup import DEFAULT, Setup
from covist.eval.subject import bundled_concentration
from covist.loading import AS_STORED, Loading
from covist.plugins import Plugin
from covist.request.loading import load_model
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.service import Service


@dataclass(frozen=True)
class ServiceSpec:
    """The options of `covist serve` that affect answers.

    A concentration reference that the setup leaves open is measured when the model is loaded, whatever its method: a
    request may choose one that needs it.
    """

    model: str = "tiny"
    name: str | None = None  # that clients give; by default that of the model's folder
    clip: str | None = None
    loading: Loading = AS_STORED
    setup: Setup = DEFAULT
    limits: Limits = field(default_factory=Limits)
    image_hosts: tuple[str, ...] = ()
    temperature: float = 0.0
    plugins: tuple[Plugin, ...] = ()

    def build(self, keys: Keys | None = None) -> Service:
        """Load the model and start the service."""
        for plugin in self.plugins:
            plugin.load()
        loaded, setup = load_model(self.model, self.clip, self.loading), self.setup
        if setup.concentration is None:
            setup = replace(setup, concentration=bundled_concentration(loaded))
        return Service(
            loaded,
            setup,
            name=self.name,
            limits=self.limits,
            keys=keys,
            image_hosts=self.image_hosts,
            temperature=self.temperature,
        )
