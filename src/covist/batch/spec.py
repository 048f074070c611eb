"""What workers are told and what they find: plain values, for which no model is loaded and no torch imported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from covist.config import CovistConfig

if TYPE_CHECKING:
    from covist.schedule import Calibration


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker needs to begin; it can be sent to another machine.

    folder: what the paths in rows are relative to
    prompt: for rows that have none
    batch_size: rows that are answered at once; None fits them to the memory by their tokens
    concentration: what CoViST's running reference is frozen to; None measures it, see `Facts`
    min_coverage: of an image, or else it runs uncompressed
    calibration: for methods that go by one
    identity: of the model, as the job began; a worker that loads something else refuses to work
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
        """The same for all workers of a job."""
        return replace(self, concentration=facts.concentration, identity=facts.identity)


@dataclass(frozen=True)
class Facts:
    """What is known of a model once one worker has loaded it.

    concentration: the frozen reference, which answers of all workers hang on; None for methods that have none
    kv_bytes_per_token: of the cache, over all layers
    """

    identity: dict[str, str]
    concentration: float | None
    kv_bytes_per_token: float
