"""What workers are given and what they report: plain values, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from covist.api.setup import DEFAULT, Setup


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker needs to start; it can be sent to another machine.

    setup: how images are compressed; a reference that it leaves open is measured, see `Facts`
    folder: the folder that the paths in rows are relative to
    prompt: the question for rows that have none
    batch_size: rows per batch; None chooses it by their tokens
    identity: of the model that the job began with; a worker that loads another one raises an error
    """

    model: str = "tiny"
    clip: str | None = None
    device: str = "auto"
    setup: Setup = DEFAULT
    max_new_tokens: int = 64
    folder: Path = Path()
    prompt: str | None = None
    batch_size: int | None = None
    identity: dict[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "setup", self.setup.over(DEFAULT))

    def with_facts(self, facts: Facts) -> WorkerSpec:
        """The spec with the facts that all workers of a job share."""
        return replace(self, setup=replace(self.setup, concentration=facts.concentration), identity=facts.identity)


@dataclass(frozen=True)
class Facts:
    """What is known about a model once one worker has loaded it.

    concentration: the frozen reference that all workers use; None for methods without one
    kv_bytes_per_token: in the KV cache, over all layers
    """

    identity: dict[str, str]
    concentration: float | None
    kv_bytes_per_token: float
