"""What a family says about itself without a model at hand: whom it serves, what it is like, its published sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from covist.errors import CovistError
from covist.plan import Geometry

VOCABULARY, FIRST_SPECIAL = 1024, 1000
"""Of a model with random weights: ids from FIRST_SPECIAL on are for the family's placeholders, those below for text."""


class FamilyProfile:
    """The class attributes of a family, and how to build random-weight models of its published sizes."""

    name: ClassVar[str]
    model_classes: ClassVar[tuple[str, ...]]
    """The transformers classes that it serves, by name: older releases may not have all of them."""
    tower_types: ClassVar[tuple[str, ...]] = ()
    """Model types of the vision towers that it reads, where other families read the same classes with other towers."""
    processor: ClassVar[str | None] = None
    """The transformers processor, by name, if it has a video half (which needs torchvision); others find themselves."""
    needs_clip_text: ClassVar[bool] = True
    """Whether a CLIP text tower can serve this family (its encoder is a CLIP vision tower)."""

    encoder_signal: ClassVar[str] = ""
    """Where the evidence comes from, in a few words for `covist models`."""
    token_count: ClassVar[str] = ""
    """How many visual tokens an image has, in a few words for `covist models`."""
    video_stand_in: ClassVar[str | None] = None
    """The class of `families/pil_videos.py`, by name, that prepares videos where torchvision is missing."""
    video: ClassVar[str] = "none"
    """What becomes of videos, in a few words for `covist models`: none, runs uncompressed, compressed."""
    presets: ClassVar[tuple[Geometry, ...]] = ()
    """Published sizes, for `covist plan --preset` and `covist bench --geometry`; the first stands for the family."""

    shallow_tower: ClassVar[Mapping[str, Any]] = {}
    """Fields of the vision configuration that leave as little depth as the signals need, for benchmarks without it."""

    @classmethod
    def takes_videos(cls) -> bool:
        """Whether there is something to gain from videos."""
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
        """The configuration of a model of a preset: `text` and `tower` are the fields of its two halves.

        Placeholders have ids from FIRST_SPECIAL on.
        """
        raise CovistError(f"the family {cls.name} has no random-weight models")

    @classmethod
    def random_input(
        cls, geometry: Geometry, config: Any, generator: torch.Generator
    ) -> tuple[list[int], dict[str, Tensor]]:
        """A random image or video of a preset: its tokens in the prompt, and the model's other arguments for it."""
        raise CovistError(f"the family {cls.name} has no random-weight models")

    @classmethod
    def random_tokenizer(cls) -> Any | None:
        """What reads the prompts of random-weight models, where the family must read them; None where it need not."""
        return None


def narrowed(count: int, scale: float, multiple: int = 1) -> int:
    """A number of heads times `scale`, at least one, divisible by `multiple`."""
    return max(1, round(count * scale / multiple)) * multiple
