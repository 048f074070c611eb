"""What the zoo states about one model type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from support.zoo.films import Film
from support.zoo.tiny import VIDEO
from support.zoo.visual import Seeds

FUSED = "its projections are fused or latent"
INDEXED = "an indexer chooses keys, and its keys are latent"
NO_ATTENTION = "the tower has no attention"
OWN_ATTENTION = "the tower computes its attention by itself"
QUERIES = "learned queries stand between patches and tokens"
Visual = Callable[[Any, Seeds], dict[str, Tensor]]


@dataclass(frozen=True)
class Entry:
    """A type, what its tiny model needs beyond small sizes, and how its images arrive."""

    model_type: str
    visual: Visual
    text: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    """Other parts of the configuration, and options of the whole."""
    types: int = 1
    """What stands at the placeholders of an image in `token_type_ids` or `mm_token_type_ids`."""
    eager: bool = False
    """Whether the class has no other attention."""
    variant: str = ""
    """Distinguishes entries of one type."""
    film: Film | None = None
    """How a video arrives; None if the class takes none."""
    runs: int = 1
    """In how many runs of placeholders a prompt shows the video: one, or one for each frame."""
    film_token: int = VIDEO
    known: dict[str, str] = field(default_factory=dict)
    """Check -> why the plain model itself does not pass it. Compression may deviate as far as the plain model."""
    fails: dict[str, str] = field(default_factory=dict)
    """Check -> why the plain model stops with an error."""
    unread: str = ""
    """Why methods that read the decoder's attention refuse it."""
    blind: str = ""
    """Why the attention of the vision tower is not read."""

    @property
    def name(self) -> str:
        return f"{self.model_type} ({self.variant})" if self.variant else self.model_type
