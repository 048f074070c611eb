"""Conversations: text, images and videos, before a model's processor has seen them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from PIL import Image

from covist.engine.capture import execution_device
from covist.request.inputs import Request, prepare_conversation
from covist.request.loading import LoadedModel
from covist.request.prompts import Turn
from covist.request.videos import Video


@dataclass(frozen=True)
class Conversation:
    """Turns as chat templates read them, and their images and videos in order."""

    turns: tuple[Turn, ...]
    images: tuple[Image.Image, ...] = ()
    videos: tuple[Video, ...] = ()

    @property
    def shows_something(self) -> bool:
        return bool(self.images or self.videos)

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Sizes of images and videos, on which the numbers of their tokens depend."""
        films = ((len(video.frames), video.frames[0].size) for video in self.videos)
        return (*(image.size for image in self.images), *films)

    @property
    def fingerprint(self) -> int:
        """A checksum of the images and videos, whatever the question."""
        frames = (frame for video in self.videos for frame in video.frames)
        checksum = zlib.crc32(repr(self.shapes).encode())
        for image in (*self.images, *frames):
            checksum = zlib.crc32(image.tobytes(), checksum)
        return checksum

    def request(self, loaded: LoadedModel) -> Request:
        """The inputs of the model on its device, without padding."""
        return prepare_conversation(loaded, self.turns, self.images, self.videos).to(execution_device(loaded.model))

    def pose(self, loaded: LoadedModel) -> Posed:
        """The inputs of the model with the sizes of images and videos, which themselves are no longer needed."""
        return Posed(self.request(loaded), self.shapes)


@dataclass(frozen=True)
class Posed:
    """A conversation that is ready for the model, as one prompt.

    shapes: sizes of its images and videos; empty if there are none
    """

    request: Request
    shapes: tuple[Any, ...]
