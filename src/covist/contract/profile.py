"""What a family declares without a loaded model: the classes it serves, a few facts, and published sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.errors import CovistError
from covist.plan import Geometry

VOCABULARY, FIRST_SPECIAL = 1024, 1000
"""Of a model with random weights: ids from FIRST_SPECIAL on are the family's placeholders, ids below it are text."""


class FamilyProfile:
    """The class attributes of a family, and how to build random-weight models of its published sizes."""

    name: ClassVar[str]
    model_classes: ClassVar[tuple[str, ...]]
    """Names of the transformers classes that it serves; names, because older releases may lack some of them."""
    tower_types: ClassVar[tuple[str, ...]] = ()
    """Model types of the vision towers that it reads, if another family serves the same classes with other towers."""
    processor: ClassVar[str | None] = None
    """Name of the transformers processor if it has a video half (which needs torchvision); otherwise `AutoProcessor`
    finds it."""
    needs_clip_text: ClassVar[bool] = True
    """Whether a CLIP text tower can serve this family (its encoder is a CLIP vision tower)."""

    encoder_signal: ClassVar[str] = ""
    """The source of the evidence, in a few words for `covist models`."""
    token_count: ClassVar[str] = ""
    """How many visual tokens an image has, in a few words for `covist models`."""
    video_stand_in: ClassVar[str | None] = None
    """Name of the class in `families/_pil_videos.py` that prepares videos if torchvision is missing."""
    video: ClassVar[str] = "none"
    """What happens to videos, in a few words for `covist models`: none, runs uncompressed, compressed."""
    presets: ClassVar[tuple[Geometry, ...]] = ()
    """Published sizes, for `covist plan --preset` and `covist bench --geometry`; the first represents the family."""

    shallow_tower: ClassVar[Mapping[str, Any]] = {}
    """Fields of the vision configuration that reduce the tower to the depth that the signals need, for benchmarks."""

    @classmethod
    def takes_videos(cls) -> bool:
        """Whether the family compresses videos."""
        return cls.video.startswith("compressed")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.presets = vars(cls).get("presets", ())  # sizes of published models belong to one family: not inherited

    @classmethod
    def published_tower(cls, geometry: Geometry, scale: float) -> dict[str, Any]:
        """Fields of the vision configuration of a preset, its widths times `scale`; depth and patches stay."""
        raise CovistError(f"the family {cls.name} has no random-weight models")

    @classmethod
    def random_config(cls, geometry: Geometry, text: dict[str, Any], tower: dict[str, Any]) -> Any:
        """The configuration of a preset's model: `text` and `tower` are the fields of its two halves.

        Placeholders have ids from FIRST_SPECIAL on.
        """
        raise CovistError(f"the family {cls.name} has no random-weight models")

    @classmethod
    def random_input(
        cls, geometry: Geometry, config: Any, generator: torch.Generator
    ) -> tuple[list[int], dict[str, Tensor]]:
        """A random image or video of a preset: its prompt tokens, and the model's other arguments for it."""
        raise CovistError(f"the family {cls.name} has no random-weight models")

    @classmethod
    def random_tokenizer(cls) -> Any | None:
        """The tokenizer for prompts of random-weight models; None if the family does not read the text of prompts."""
        return None


def narrowed(count: int, scale: float, multiple: int = 1) -> int:
    """A number of heads times `scale`, at least one, divisible by `multiple`."""
    return max(1, round(count * scale / multiple)) * multiple
