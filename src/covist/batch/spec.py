"""What workers are given and what they report: plain values, without a model and without importing torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from covist.config import CovistConfig

if TYPE_CHECKING:
    from covist.schedule import Calibration


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker needs to start; it can be sent to another machine.

    folder: the folder that the paths in rows are relative to
    prompt: the question for rows that have none
    batch_size: rows per batch; None chooses it by their tokens
    concentration: CoViST's frozen reference; None measures it, see `Facts`
    min_coverage: an image of which the tokens would cover less runs uncompressed
    calibration: for methods that use one
    identity: of the model that the job began with; a worker that loads another one raises an error
    """

    model: str = "tiny"
    clip: str | None = None
    device: str = "auto"
    method: str = "covist-fixed"
    budget: int | float | str = 64
    constants: CovistConfig | None = None
    concentration: float | None = None
    min_coverage: float | None = None
    calibration: Calibration | None = None
    max_new_tokens: int = 64
    folder: Path = Path()
    prompt: str | None = None
    batch_size: int | None = None
    identity: dict[str, str] | None = None

    def settled(self, facts: Facts) -> WorkerSpec:
        """The spec with the facts that all workers of a job share."""
        return replace(self, concentration=facts.concentration, identity=facts.identity)


@dataclass(frozen=True)
class Facts:
    """What is known about a model once one worker has loaded it.

    concentration: the frozen reference that all workers use; None for methods without one
    kv_bytes_per_token: in the KV cache, over all layers
    """

    identity: dict[str, str]
    concentration: float | None
    kv_bytes_per_token: float
