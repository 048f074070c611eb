"""What workers are given and what they report: plain values, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from covist.api.setup import DEFAULT, Setup
from covist.loading import AS_STORED, Loading
from covist.plugins import Plugin


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker needs to start; it can be sent to another machine.

    setup: how images are compressed; what it leaves open is decided once for all workers, see `Facts`
    prompt: the question for rows that have none
    batch_size: rows per batch; None chooses it by their tokens
    identity: of the model that the job began with; a worker that loads another one raises an error
    plugins: with methods or families that covist does not have
    """

    model: str = "tiny"
    clip: str | None = None
    loading: Loading = AS_STORED
    setup: Setup = DEFAULT
    max_new_tokens: int = 64
    prompt: str | None = None
    batch_size: int | None = None
    identity: dict[str, str] | None = None
    plugins: tuple[Plugin, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "setup", self.setup.over(DEFAULT))

    def with_facts(self, facts: Facts) -> WorkerSpec:
        """The spec with the facts that all workers of a job share."""
        setup = replace(self.setup, concentration=facts.concentration).over(facts.defaults)
        return replace(self, setup=setup, identity=facts.identity)


@dataclass(frozen=True)
class Facts:
    """What is known about a model once one worker has loaded it.

    concentration: the frozen reference that all workers use; None for methods without one
    kv_bytes_per_token: in the KV cache, over all layers
    budget: the model's default, for a setup without one
    """

    identity: dict[str, str]
    concentration: float | None
    kv_bytes_per_token: float
    budget: int | str | None = None

    @property
    def defaults(self) -> Setup:
        """What the model decides if nobody says it."""
        return Setup(budget=self.budget)
