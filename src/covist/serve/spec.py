"""What a service is built from, as plain values, so that every process builds the same service."""

from __future__ import annotations

from dataclasses import dataclass, field

from covist.api.choose import DEFAULT_BUDGET, DEFAULT_METHOD
from covist.api.setup import Setup
from covist.config import CovistConfig
from covist.eval.subject import bundled_concentration
from covist.request.loading import load_model
from covist.serve.keys import Keys
from covist.serve.limits import Limits
from covist.serve.service import Service


@dataclass(frozen=True)
class ServiceSpec:
    """The options of `covist serve` that affect answers; `concentration=None` is measured when the model is loaded."""

    model: str = "tiny"
    clip: str | None = None
    device: str = "auto"
    budget: int | float | str = DEFAULT_BUDGET
    method: str = DEFAULT_METHOD
    config: CovistConfig | Setup | None = None
    min_coverage: float | None = None
    concentration: float | None = None
    limits: Limits = field(default_factory=Limits)
    image_hosts: tuple[str, ...] = ()
    temperature: float = 0.0

    def build(self, keys: Keys | None = None) -> Service:
        """Load the model and start the service."""
        loaded = load_model(self.model, self.clip, self.device)
        return Service(
            loaded,
            budget=self.budget,
            method=self.method,
            config=self.config,
            min_coverage=self.min_coverage,
            concentration=bundled_concentration(loaded) if self.concentration is None else self.concentration,
            limits=self.limits,
            keys=keys,
            image_hosts=self.image_hosts,
            temperature=self.temperature,
        )
