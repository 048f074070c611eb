"""What a family declares without a loaded model: the classes it serves, a few facts, and published sizes."""

from __future__ import annotations

from typing import Any, ClassVar

from covist.budget import Budget, Share
from covist.plan import Geometry


class FamilyProfile:
    """The class attributes of a family."""

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

    default_budget: ClassVar[Budget] = Share(0.2)
    """The budget if nobody gives one: the only place that says it. A count suits families whose images have one number
    of tokens; elsewhere it would leave small images uncompressed and starve large ones."""

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

    @classmethod
    def takes_videos(cls) -> bool:
        """Whether the family compresses videos."""
        return cls.video.startswith("compressed")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.presets = vars(cls).get("presets", ())  # sizes of published models belong to one family: not inherited
