"""What a service is built from, as plain values, so that every process builds the same service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from covist.api.setup import DEFAULT, Setup
from covist.eval.subject import bundled_concentration
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
    clip: str | None = None
    device: str = "auto"
    setup: Setup = DEFAULT
    limits: Limits = field(default_factory=Limits)
    image_hosts: tuple[str, ...] = ()
    temperature: float = 0.0

    def build(self, keys: Keys | None = None) -> Service:
        """Load the model and start the service."""
        loaded, setup = load_model(self.model, self.clip, self.device), self.setup
        if setup.concentration is None:
            setup = replace(setup, concentration=bundled_concentration(loaded))
        return Service(
            loaded,
            setup,
            limits=self.limits,
            keys=keys,
            image_hosts=self.image_hosts,
            temperature=self.temperature,
        )
