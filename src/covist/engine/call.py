"""What the hooks know of the call that is running."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from covist.contract.decoder import Rotary
from covist.engine.attention import StageAttention
from covist.engine.cache import StageLayer
from covist.engine.encoded import EncodedImages
from covist.engine.ledger import Ledger
from covist.engine.prefill import Prefill
from covist.engine.prompt import Prompt


@dataclass(frozen=True)
class Stage:
    """What the layers of one stage need in the current call; None: what the text model hands to its layers anyway."""

    attention: StageAttention
    rotary: Rotary | None = None
    positions: Tensor | None = None  # [batch, tokens]


class Call(threading.local):
    """State of the call that is running in this thread. `__init__` runs once per thread, so nothing is shared."""

    def __init__(self) -> None:
        self.input_ids: Tensor | None = None
        self.is_image: Tensor | None = None
        self.encoded = EncodedImages()
        self.drafting = False  # whether this model drafts for itself
        self.brings_images = False
        self.features: dict[str, Any] = {}  # of images and videos, as far as the caller encoded them
        self.prefill: Prefill | None = None
        self.stages: dict[int, Stage] = {}  # first layer of a stage -> the stage, in order of depth
        self.cache_layers: list[StageLayer] = []
        self.past: list[Ledger | None] = []  # per layer, what its cache held before this call
        self.seen = 0  # tokens of earlier calls in the cache
        self.length = 0  # tokens of this call
        self.prompt: Prompt | None = None  # of a prefill, if a later question may choose again
        self.shown = 0  # tokens at its end whose states are asked for; 0: of all
