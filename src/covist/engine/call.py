"""The state of the running call, shared by the hooks."""

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
    """What the layers of one stage need in the current call; None leaves what the text model passes to its layers."""

    attention: StageAttention
    rotary: Rotary | None = None
    positions: Tensor | None = None  # [batch, tokens]


class Call(threading.local):
    """State of this thread's running call. `__init__` runs once per thread, so threads share nothing."""

    def __init__(self) -> None:
        self.input_ids: Tensor | None = None
        self.is_image: Tensor | None = None
        self.encoded = EncodedImages()
        self.drafting = False  # whether this model is drafting for itself
        self.brings_images = False
        self.features: dict[str, Any] = {}  # of images and videos that the caller has encoded
        self.prefill: Prefill | None = None
        self.stages: dict[int, Stage] = {}  # first layer of a stage -> the stage, in order of depth
        self.cache_layers: list[StageLayer] = []
        self.past: list[Ledger | None] = []  # per layer, the ledger of its cache before this call
        self.seen = 0  # tokens of earlier calls in the cache
        self.length = 0  # tokens of this call
        self.prompt: Prompt | None = None  # of a prefill, if a later question may choose again
        self.shown = 0  # number of last tokens whose states the caller expects; 0: all
